"""A site-packages folder whose torch is imported in no time, and modules that a warm process can't import."""

from __future__ import annotations

from pathlib import Path

TORCH = {
    "torch/__init__.py": "class default_generator:\n    seed = staticmethod(lambda: None)\n",
    "torch/distributed.py": "",
    "torch/_dynamo.py": "",
    "torch/nn/__init__.py": "",
    "torch/nn/parallel.py": "",
    "starts_thread.py": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
    "raises.py": "raise RuntimeError('as asked')\n",
    "exits.py": "raise SystemExit(3)\n",
    "warns.py": "print('an import warns')\n",
    "draws.py": "import random; kept = random.random()\n",
}

# A torch whose optimizer steps are counted, and a package that a script may import.
COUNTED = {
    "torch/__init__.py": "from . import optim\nclass compiler: disable = staticmethod(lambda hook: hook)\n"
    "class default_generator: seed = staticmethod(lambda: None)\n",
    "torch/optim/__init__.py": "from . import optimizer\n",
    "torch/optim/optimizer.py": "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n",
    "heavy/__init__.py": "import os; os.environ.setdefault('SET_BY_HEAVY', '1')\n",
    "heavy/part.py": "",
}
STEP = "import torch.optim.optimizer as o; [hook(o, (), {}) for hook in o.hooks]\n"
"""Does an optimizer step of that torch."""


def write_framework(folder: Path) -> None:
    """Writes a framework beside torch."""
    for name in ("framework/__init__.py", "framework/core.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def write_site(folder: Path, counted: bool = False) -> None:
    """Writes the modules that stand in for torch, and those that a warm process can't import.

    `counted`: with optimizer steps that are counted, and a package of a third party.
    """
    for name, text in (TORCH | (COUNTED if counted else {})).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
