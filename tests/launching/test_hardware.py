"""What this machine has, as far as we may use it."""

import os

import pytest

from hfscale import hardware
from hfscale.errors import HfscaleError


def test_cores_can_be_set(monkeypatch):
    monkeypatch.setenv("HFSCALE_CORES", "7")
    assert hardware.usable_cores() == 7


@pytest.mark.parametrize("wish", ["0", "-2", "two", "1.5"])
def test_a_wrong_number_of_cores_is_refused(monkeypatch, wish):
    monkeypatch.setenv("HFSCALE_CORES", wish)
    with pytest.raises(HfscaleError, match="HFSCALE_CORES"):
        hardware.usable_cores()


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("150000 100000", 1), ("50000 100000", 1), ("300000 100000", 3)]
)
def test_a_containers_quota_counts(monkeypatch, quota, cores):
    monkeypatch.delenv("HFSCALE_CORES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(hardware, "_cgroup_texts", lambda v2, v1: [quota] if v2 == "cpu.max" else [])
    assert hardware.usable_cores() == cores


def test_a_containers_memory_limit_counts(monkeypatch):
    assert hardware.total_memory() > 2**28
    monkeypatch.setattr(hardware, "_cgroup_texts", lambda v2, v1: ["max", str(2**27)])
    assert hardware.total_memory() == 2**27


@pytest.mark.parametrize(
    ("gpus", "device", "world_size", "chosen"),
    [
        (0, "auto", 2, "cpu"),
        (1, "auto", 2, "cpu"),
        (2, "auto", 2, "cuda"),
        (4, "cpu", 2, "cpu"),
        (2, "cuda", 2, "cuda"),
    ],
)
def test_each_rank_gets_a_gpu_of_its_own_or_none(monkeypatch, gpus, device, world_size, chosen):
    monkeypatch.setattr(hardware, "cuda_devices", lambda: gpus)
    assert hardware.resolve_device(device, world_size) == chosen


def test_missing_gpus_are_a_sentence(monkeypatch):
    monkeypatch.setattr(hardware, "cuda_devices", lambda: 0)
    with pytest.raises(HfscaleError, match="Use device='cpu'"):
        hardware.resolve_device("cuda", 1)
    monkeypatch.setattr(hardware, "cuda_devices", lambda: 1)
    with pytest.raises(HfscaleError, match="needs 2 GPUs, one for each rank, and 1 can be seen"):
        hardware.resolve_device("cuda", 2)


def test_hidden_gpus_are_not_counted(monkeypatch):
    monkeypatch.setattr(hardware, "_torch_cuda_version", lambda: "13.0")
    monkeypatch.setattr(hardware, "_nvml_device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hardware.cuda_devices() == 4
    for visible, count in {"": 0, "-1": 0, "2": 1, "0,3": 2}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert hardware.cuda_devices() == count


def test_the_torch_build_is_known_without_importing_it():
    import torch

    assert hardware._torch_cuda_version() == torch.version.cuda
