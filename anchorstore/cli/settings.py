"""The options that give a command the daemon's configuration."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from anchorstore.config import Config, Loaded, Override, load, parse_override

SHORTCUTS = (
    ("--dram", "SIZE", "tiers.dram.capacity", "memory of the pool, e.g. 64GiB"),
    ("--socket", "PATH", "listen.socket", "Unix socket for engines and operators"),
    ("--tcp", "HOST:PORT", "listen.tcp", "framed TCP for engines on other hosts"),
    ("--grpc", "HOST:PORT", "listen.grpc", "gRPC with health and reflection"),
    ("--http", "HOST:PORT", "listen.http", '/metrics, /livez, /readyz; "" turns them off'),
)
"""Option, its value's name, the key it sets, what it says."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds --config, --set and a short option for the keys that are changed most."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with the settings")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting, e.g. lease.read_ttl=30s; wins over everything else; repeatable",
    )
    for option, value, key, text in SHORTCUTS:
        parser.add_argument(option, metavar=value, help=f"{text} (sets {key})")
    parser.add_argument(
        "--nvme",
        metavar="PATH:SIZE",
        action="append",
        default=[],
        help="a device below the pool, e.g. /mnt/nvme0:1TiB; repeatable (sets tiers.nvme.devices)",
    )
    parser.add_argument(
        "--hbm",
        metavar="DEVICE:SIZE",
        action="append",
        default=[],
        help="a CUDA device's memory for hot copies, e.g. cuda:0:8GiB; repeatable (sets "
        "tiers.hbm.devices)",
    )
    parser.add_argument(
        "--insecure-bind",
        action="store_true",
        help="bind beyond loopback without TLS and tokens (sets listen.insecure_bind)",
    )


def overrides_of(args: argparse.Namespace) -> list[Override]:
    """What the options say; --set comes last and wins."""
    found = [
        Override(key, value, option)
        for option, _, key, _ in SHORTCUTS
        if (value := getattr(args, option.lstrip("-"))) is not None
    ]
    if args.nvme:
        found.append(Override("tiers.nvme.devices", ",".join(args.nvme), "--nvme"))
    if args.hbm:
        found.append(Override("tiers.hbm.devices", ",".join(args.hbm), "--hbm"))
    if args.insecure_bind:
        found.append(Override("listen.insecure_bind", "true", "--insecure-bind"))
    return found + [parse_override(text) for text in args.set]


def loaded_from(args: argparse.Namespace) -> Loaded:
    """Defaults, file, environment and options together; ConfigError lists what is wrong."""
    return load(args.config, os.environ, overrides_of(args))


def unusable_files(config: Config) -> list[str]:
    """Files that the configuration names and that cannot be read or made here, a line each."""
    named = {
        "tls.certificate": config.tls.certificate,
        "tls.key": config.tls.key,
        "tls.client_ca": config.tls.client_ca,
        "auth.token_file": config.auth.token_file,
        "auth.admin_token_file": config.auth.admin_token_file,
    }
    found = []
    for key, path in named.items():
        if path and not os.access(path, os.R_OK):
            found.append(f"{key}: cannot read {path}")
    for device in config.tiers.nvme.devices:
        place = Path(device.path)
        target = place if place.exists() else place.parent
        if not os.access(target, os.R_OK | os.W_OK):
            found.append(f"tiers.nvme.devices: cannot use {device.path}: no right to {target}")
    folder = Path(config.listen.socket).absolute().parent
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):  # serve makes the rest
        found.append(f"listen.socket: cannot make {config.listen.socket}: no right to {nearest}")
    return found
