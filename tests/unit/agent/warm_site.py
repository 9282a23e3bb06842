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
}


def write_site(folder: Path) -> None:
    """Writes the modules that stand in for torch, and those that a warm process can't import."""
    for name, text in TORCH.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
