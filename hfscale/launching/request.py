"""What a caller asks its server for: one launch, as plain data that travels over a socket."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class LaunchRequest:
    """One launch. What to call lies in the folder's payload file, or is named by `entry` ("module:function")."""

    folder: str
    world_size: int
    device: str  # "cpu" or "cuda"
    threads: int
    precision: str  # what ACCELERATE_MIXED_PRECISION takes: "no", "bf16", "fp16"
    started: float  # time.time() of the launch, the zero of all events
    timeout: float | None = None  # seconds until the supervisor ends it
    entry: str | None = None
    values: str = "pickle"  # how ranks return their values: "pickle" (to the caller only) or "json"
    # The caller's surroundings now, not those of the moment when the server started:
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    directory: str = field(default_factory=os.getcwd)
    path: list[str] = field(default_factory=lambda: list(sys.path))

    @property
    def ranks(self) -> range:
        return range(self.world_size)

    def value_path(self, rank: int) -> Path:
        return Path(self.folder) / f"result{rank}.{'pkl' if self.values == 'pickle' else 'json'}"

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)
