"""The daemon's configuration: frozen dataclasses, loaded strictly.

::

    values.py  kinds of values        access.py, storage.py, nvme.py, hbm.py  the sections
    fields.py  how a key is declared  schema.py  Config, the list of keys
    combine.py  wrong together        loader.py  file, environment, --set    render.py  for people

``load(file, environment, overrides)`` gives ``Loaded(config, sources)``.
"""

from anchorstore.config.access import AuthConfig, ListenConfig, LogConfig, NodeConfig, TlsConfig
from anchorstore.config.combine import problems
from anchorstore.config.hbm import HbmConfig, SlabConfig
from anchorstore.config.limits import LimitsConfig
from anchorstore.config.loader import Loaded, Override, load, parse_override
from anchorstore.config.nvme import DeviceConfig, NvmeConfig
from anchorstore.config.schema import SETTINGS, Config, build
from anchorstore.config.storage import (
    LINEAGE_ANY,
    DeadlinesConfig,
    DramConfig,
    LeaseConfig,
    NamespaceRule,
    NamespacesConfig,
    TiersConfig,
)
from anchorstore.config.values import is_loopback, parse_address

__all__ = [
    "LINEAGE_ANY",
    "SETTINGS",
    "AuthConfig",
    "Config",
    "DeadlinesConfig",
    "DeviceConfig",
    "DramConfig",
    "HbmConfig",
    "LeaseConfig",
    "LimitsConfig",
    "ListenConfig",
    "Loaded",
    "LogConfig",
    "NamespaceRule",
    "NamespacesConfig",
    "NodeConfig",
    "NvmeConfig",
    "Override",
    "SlabConfig",
    "TiersConfig",
    "TlsConfig",
    "build",
    "is_loopback",
    "load",
    "parse_address",
    "parse_override",
    "problems",
]
