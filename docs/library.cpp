#include <fstream>
#include <iostream>
#include <iterator>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/csrc/jit/serialization/pickle.h>

int main(int, char** argv) {
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  torch::inductor::TensorConstantMap constants;
  for (const auto& one : torch::jit::pickle_load(bytes).toGenericDict())
    constants.emplace(one.key().toStringRef(), new at::Tensor(one.value().toTensor()));
  torch::inductor::AOTIModelContainerRunnerCpu model(argv[1]);
  model.update_constant_buffer(constants, false, true, true);
  std::cout << model.run({at::ones({5, 8}), at::ones({8})})[0].sum().item<double>() << "\n";
}
