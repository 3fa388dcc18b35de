"""Every test of the disk store runs over the store in memory too, or says here why it cannot."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# Fixtures and parameters that stand for a store of each kind.
BOTH = {
    "test_store_protocol.py": {"store", "place"},
    "test_store_damage.py": {"place"},
    "test_store_layered.py": {"two"},
}
# What whole modules are about.
OF_FILES = {
    "test_store_arrival.py": "pieces keep a large object out of memory, where all objects are here",
    "test_store_both.py": "it is about the tests",
    "test_store_directories.py": "directories, and what of them is durable",
    "test_store_import.py": "what the import of the package brings, whichever store is used",
    "test_store_layout.py": "names of files",
    "test_store_location.py": "where a directory is looked for",
    "test_store_locks.py": "locks between processes, which share no store in memory",
    "test_store_mapping.py": "mapped files; what readers see of either way is in test_store_protocol",
    "test_store_signatures.py": "files of signatures and keys; in one process there is nobody to mistrust",
    "test_store_trust.py": "owners and modes of files; in one process there is nobody to mistrust",
    "test_store_turns.py": "writers and collectors of several processes; nothing in memory is collected",
}
# What single tests are about.
OF_DISK = {
    "test_a_missing_store_is_empty_and_stays_missing": "a directory that is not there",
    "test_a_file_in_place_of_a_store": "a directory that is a file",
    "test_what_is_created": "names and modes of files",
    "test_an_interrupted_creation_is_finished": "a directory that was made in part",
    "test_a_store_that_was_removed_is_made_again": "a directory that is moved away",
    "test_somebodys_directory_is_not_made_a_store": "a directory with other files",
    "test_another_format_is_refused": "a directory of another version",
    "test_denied_changes_are_explained": "errors of a file system",
    "test_reading_changes_nothing": "a file system that is read-only",
    "test_a_read_that_fails_on_the_disk_is_damage": "errors of a disk",
    "test_workers_of_another_user_read_but_do_not_write": "accounts",
    "test_putting_again_marks_the_object_as_used": "modification times, for collections",
    "test_digests_are_listed": "the listing that fsck and collections of a directory use",
    "test_quarantine_keeps_the_file_and_the_reason": "a directory for files that somebody may look at",
    "test_left_over_files_are_swept": "files of processes that ended",
    "test_real_processes_are_told_apart": "files of processes that ended",
    "test_sizes_are_capped_before_reading": "files that would not fit into memory",
    "test_a_link_in_place_of_a_file_is_refused": "symbolic links",
    "test_what_is_no_file_is_refused_without_waiting": "pipes",
    "test_a_layer_that_goes_away": "mounts that vanish",
    "test_trouble_with_the_top_is_no_secret": "modes of a directory",
    "test_where_layers_are_named": "paths in variables and configurations",
    "test_the_configuration_says_the_same": "paths in variables and configurations",
}


def found_in(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


@pytest.mark.parametrize("path", sorted(HERE.glob("test_store_*.py")), ids=lambda path: path.stem)
def test_each_test_is_for_both_stores_or_has_its_reason(path: Path) -> None:
    if path.name in OF_FILES:
        return
    for test in found_in(path):
        over_both = {one.arg for one in test.args.args} & BOTH.get(path.name, set())
        assert bool(over_both) != (test.name in OF_DISK), f"{path.name}: {test.name}"


def test_no_reason_is_given_for_a_test_that_is_gone() -> None:
    found = {test.name for path in HERE.glob("test_store_*.py") for test in found_in(path)}
    assert set(OF_DISK) <= found
    assert all((HERE / name).exists() for name in {*OF_FILES, *BOTH})
