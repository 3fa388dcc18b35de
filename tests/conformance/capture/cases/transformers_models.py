"""Models of transformers, small and with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cases.torchvision_operators  # noqa: F401 - before transformers looks for torchvision

# isort: split
import torch
import transformers

import preheat

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def tokens(count: int = 12) -> Tensor:
    return torch.randint(1, 90, (1, count))


def llama(layers: int = 2) -> Any:
    sizes = {**SIZES, "num_hidden_layers": layers, "num_key_value_heads": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def spec_of(model: Any, **inputs: Any) -> preheat.Spec:
    return preheat.Spec(model.eval(), examples=[preheat.Example(**inputs)])


@preheat.target
def t01_llama() -> preheat.Spec:
    return spec_of(llama(), input_ids=tokens(), use_cache=False)


@preheat.target
def t02_llama_cache() -> preheat.Spec:
    return spec_of(llama(), input_ids=tokens())


@preheat.target
def t03_qwen3() -> preheat.Spec:
    config = transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=16)
    return spec_of(transformers.Qwen3ForCausalLM(config), input_ids=tokens(), use_cache=False)


@preheat.target
def t04_bert() -> preheat.Spec:
    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    mask = torch.ones(1, 12, dtype=torch.long)
    return spec_of(model, input_ids=tokens(), attention_mask=mask)


@preheat.target
def t05_gpt2() -> preheat.Spec:
    config = transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2)
    return spec_of(transformers.GPT2LMHeadModel(config), input_ids=tokens(), use_cache=False)


@preheat.target
def t06_t5() -> preheat.Spec:
    config = transformers.T5Config(
        vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2
    )
    return spec_of(
        transformers.T5ForConditionalGeneration(config),
        input_ids=tokens(),
        decoder_input_ids=tokens(5),
        use_cache=False,
    )


@preheat.target
def t07_vit() -> preheat.Spec:
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    return spec_of(transformers.ViTModel(config), pixel_values=torch.randn(1, 3, 32, 32))


@preheat.target
def t08_whisper() -> preheat.Spec:
    config = transformers.WhisperConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=20,
        pad_token_id=0,
        decoder_start_token_id=1,
        bos_token_id=1,
        eos_token_id=2,
    )
    return spec_of(
        transformers.WhisperForConditionalGeneration(config),
        input_features=torch.randn(1, 16, 40),
        decoder_input_ids=tokens(5),
        use_cache=False,
    )


@preheat.target
def t09_mixtral() -> preheat.Spec:
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=2)
    return spec_of(transformers.MixtralForCausalLM(config), input_ids=tokens(), use_cache=False)


@preheat.target
def t10_llama_generate_static() -> preheat.Spec:
    model = llama().eval()

    def run(compiled: Callable[..., Any], prompt: Tensor) -> Tensor:
        return generate_with(model, compiled, prompt)

    return preheat.Spec(model.forward, examples=[(tokens(),)], run=run)


def generate_with(model: Any, forward: Callable[..., Any], prompt: Tensor) -> Tensor:
    """Generate with a static cache, the model's ``forward`` being what was compiled."""
    model.forward = forward
    try:
        return model.generate(
            prompt,
            max_new_tokens=5,
            do_sample=False,
            cache_implementation="static",
            pad_token_id=0,
            disable_compile=True,
        )
    finally:
        del model.forward


@preheat.target
def t11_llama_train() -> preheat.Spec:
    model = llama()
    inputs = tokens()

    def run(compiled: Callable[..., Any], **inputs: Any) -> list[Tensor]:
        output = compiled(**inputs)
        output.loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        model.zero_grad(set_to_none=True)
        return [output.loss, output.logits, *gradients]

    example = preheat.Example(input_ids=inputs, labels=inputs, use_cache=False)
    return preheat.Spec(model, examples=[example], backward=True, run=run)


@preheat.target
def t12_llama_regional() -> preheat.Spec:
    """One layer, called as the whole model calls it."""
    model = llama(4).eval()
    layer = model.model.layers[0]

    def run(compiled: Callable[..., Any], prompt: Tensor) -> Any:
        layer.forward = compiled
        try:
            return model(input_ids=prompt, use_cache=False)
        finally:
            del layer.forward

    return preheat.Spec(layer.forward, examples=[(tokens(),)], run=run)


def use_t12_llama_regional(load: Any) -> Any:
    model = llama(4).eval()
    for layer in model.model.layers:
        layer.forward = load("t12_llama_regional", layer.forward)
    return model(input_ids=tokens(), use_cache=False)
