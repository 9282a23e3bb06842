"""Which parts of a model are its blocks: what is sharded, gathered, compiled and recomputed as one unit.

Models write them in three ways. A ModuleList of blocks (a GPT); a Sequential of blocks (timm's ViT, the stages of a ResNet); a
Sequential in which blocks stand beside other layers. Where none of these is right, the config's `blocks` names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from dtj_trainer.errors import ConfigError

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""They have no forward of their own, so that nothing can be done around it."""


def blocks(model: nn.Module, pattern: str | None = None) -> list[nn.Module]:
    """Returns the repeated parts of a model, in the order in which it holds them.

    Without `pattern` these are the members of every ModuleList that is in no other one (lists in a list are looked into), and of
    every Sequential whose members, two or more, are of one class with parts of its own. A model without either: members of a
    Sequential that share their class with another one; of a plain Sequential, its members.

    `pattern` is the name of a class, or a pattern (`encoder.layer.*`) of the names of modules. Raises ConfigError if the model
    has none such.
    """
    found = _named(model, pattern) if pattern else _repeated(model)
    return [b for b in dict.fromkeys(found) if any(True for _ in b.parameters())]


def describe_blocks(found: Sequence[nn.Module]) -> str:
    """Returns the blocks in words, such as `12 blocks of Block`."""
    kinds = Counter(type(block).__name__ for block in found)
    return ", ".join(f"{n} block{'s' if n > 1 else ''} of {kind}" for kind, n in kinds.items()) or "no blocks"


def _named(model: nn.Module, pattern: str) -> list[nn.Module]:
    def wanted(name: str, module: nn.Module) -> bool:
        return type(module).__name__ == pattern or fnmatchcase(name, pattern)

    found = list(_outermost(model, wanted))
    if not found:
        classes = dict.fromkeys(type(m).__name__ for m in model.modules() if m is not model and _composite(m))
        raise ConfigError(
            f"blocks={pattern!r}: {type(model).__name__} has no such part; write the name of a class ({', '.join(classes)}) or a "
            "pattern of module names, such as encoder.layer.*"
        )
    return found


def _outermost(module: nn.Module, wanted: Callable[[str, nn.Module], bool], prefix: str = "") -> Iterator[nn.Module]:
    for name, child in module.named_children():
        full = f"{prefix}{name}"
        if wanted(full, child) and not isinstance(child, CONTAINERS):
            yield child
        else:
            yield from _outermost(child, wanted, f"{full}.")


def _repeated(model: nn.Module) -> list[nn.Module]:
    found = list(_runs(model))
    runs = {type(block) for block in found if _composite(block)}
    if runs:
        # Lists of nothing but single layers beside blocks, such as heads, are not what a model is deep by.
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and not any(map(_composite, m))]
        heads = {layer for members in lists for layer in members}
        alone = _outermost(model, lambda _, m: type(m) in runs and type(m) is not nn.Sequential)  # a stage of one block
        return sorted({*found, *alone} - heads, key=[*model.modules()].index)
    if found:
        return found
    return _mixed(model) or (list(model) if isinstance(model, nn.Sequential) else [])


def _runs(module: nn.Module) -> Iterator[nn.Module]:
    """Yields members of ModuleLists, and of Sequentials that are runs of one class, the innermost of those."""
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, CONTAINERS):
            yield child
            continue
        inside = list(_runs(child))
        if not inside and _is_run(module):
            yield child
        yield from inside


def _is_run(module: nn.Module) -> bool:
    kinds = {type(child) for child in module.children()}
    members = len(list(module.children()))
    return isinstance(module, nn.Sequential) and members > 1 and len(kinds) == 1 and all(map(_composite, module.children()))


def _mixed(model: nn.Module) -> list[nn.Module]:
    """Members of Sequentials that stand there with another one of their class, the outermost."""
    wanted = set()
    for module in model.modules():
        if isinstance(module, nn.Sequential):
            kinds = Counter(type(child) for child in module if _composite(child) and type(child) is not nn.Sequential)
            wanted |= {kind for kind, n in kinds.items() if n > 1}
    return list(_outermost(model, lambda _, m: type(m) in wanted))


def _composite(module: nn.Module) -> bool:
    """Returns whether a module has parts of its own: a block, and not a single layer."""
    return next(module.children(), None) is not None
