"""What counts as user code and as data, by location."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import preheat
from preheat.sources.places import Kind, Places


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def test_the_deepest_directory_decides(tmp_path: Path) -> None:
    places = Places(
        [
            (tmp_path, Kind.LIBRARY),
            (tmp_path / "project", Kind.PROJECT),
            (tmp_path / "project" / "cache", Kind.IGNORED),
        ]
    )
    assert places.kind(tmp_path / "a.py") is Kind.LIBRARY
    assert places.kind(tmp_path / "project" / "a.py") is Kind.PROJECT
    assert places.kind(tmp_path / "project" / "cache" / "deep" / "a.py") is Kind.IGNORED
    assert places.kind("/elsewhere/a.py") is Kind.ELSEWHERE


def test_a_project_in_the_temporary_directory_counts(project: Path) -> None:
    places = Places.of_this_process(project)
    assert places.in_project(project / "a.py")
    assert places.is_data(project / "a.json")
    assert not places.is_data(project.parent / "a.json")


def test_libraries_are_no_user_code(project: Path) -> None:
    places = Places.of_this_process(project)
    for module in (json, os, pytest, torch, preheat):
        assert module.__file__ is not None
        assert not places.is_user_code(module.__file__), module.__name__
    assert not places.is_user_code(Path(sysconfig.get_path("purelib")) / "a" / "b.py")


def test_code_elsewhere_is_user_code_and_system_files_are_no_data(project: Path) -> None:
    places = Places.of_this_process(project)
    assert places.is_user_code("/srv/shared/model.py")
    assert places.is_user_code("/usr/share/app/model.py")
    for system in ("/proc/cpuinfo", "/etc/hosts", "/usr/share/zoneinfo/UTC", sys.executable):
        assert not places.is_data(system)


def test_the_search_path_counts_and_ignored_directories_do_not(
    project: Path, tmp_path: Path
) -> None:
    places = Places.of_this_process(
        project, search_path=[tmp_path / "other"], ignored=[project / "staging"]
    )
    assert places.in_project(tmp_path / "other" / "a.py")
    assert not places.is_user_code(project / "staging" / "a.py")


def test_site_packages_on_the_search_path_stay_a_library(project: Path) -> None:
    installed = Path(sysconfig.get_path("purelib"))
    places = Places.of_this_process(project, search_path=[installed])
    assert not places.is_user_code(installed / "a.py")


def test_links_are_followed_only_where_the_path_itself_says_nothing(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "linked.py").symlink_to(elsewhere / "a.py")
    (tmp_path / "alias").symlink_to(project)
    places = Places([(project, Kind.PROJECT)])
    assert places.in_project(project / "linked.py")
    assert places.in_project(tmp_path / "alias" / "a.py")
    assert not places.in_project(elsewhere / "a.py")
