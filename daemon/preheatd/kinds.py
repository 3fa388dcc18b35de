"""Every kind of a reason or a failure: a closed set, so that metrics stay bounded.

A build process may report any word; what is not known here counts as ``other``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preheat.errors import PreheatError

OTHER = "other"

KINDS = frozenset(
    """
    build build_crashed build_failed bundle busy call_not_covered configuration constant_differs
    constant_missing corrupted data_appeared data_changed data_deleted device_missing
    environment_differs executor_answer executor_failed factory_changed failed_elsewhere
    first_call_failed forbidden form_not_built gpu_busy in_layer incompatible interpreter_failed
    kernel_not_loaded layer_missing layer_not_usable library_changed listen live_code_differs
    live_code_missing load_failed memory_limit miss module_deleted module_edited module_shadowed
    module_unaffected name_taken never_built no_answer no_daemon no_known_form no_proof no_result
    not_proven order_changed other_format out_of_memory package_corrupted package_missing preheat
    probe proof proof_crashed proof_failed proof_missing rebuild_asked refused remote request
    settings_differ sources_differ sources_never_settle state_unusable store store_not_usable
    store_untrusted symbol_added symbol_deleted symbol_edited symbol_moved symbol_reformatted target
    timed_out unexpected unknown_kind unknown_target unsigned_package unsupported_version
    untrusted_store usage value_changed variable_changed wait_timeout weights_differ wrong_package
    """.split()
)


def known_kind(kind: str) -> str:
    """The kind itself, or ``other``."""
    return kind if kind in KINDS else OTHER


def kind_of(error: PreheatError) -> str:
    """The stable word for an error's class: ``UntrustedStoreError`` is ``untrusted_store``."""
    name = type(error).__name__.removesuffix("Error")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
