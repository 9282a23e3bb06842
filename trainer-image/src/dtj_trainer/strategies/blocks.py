"""Finds the blocks of a model, which are sharded, gathered, compiled and recomputed as a whole.

Models hold blocks in three ways: a ModuleList of blocks (a GPT), a Sequential of blocks (timm's
ViT, the stages of a ResNet), or a Sequential in which blocks stand beside other layers. Where none
of these is right, the config's `blocks` names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from dtj_trainer.errors import ConfigError

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules without a forward of their own, so that there is nothing to hook."""


def blocks(model: nn.Module, pattern: str | None = None) -> list[nn.Module]:
    """Returns the repeated submodules of a model, in the order in which it holds them.

    Without `pattern`, blocks are the members of every ModuleList (of lists in a list, their
    members), and of every Sequential whose members, two or more, are of one class that has
    submodules. In a model without either, blocks are the members of a Sequential that share their
    class with another member; in a plain Sequential, all members.

    `pattern` is the name of a class, or a pattern (`encoder.layer.*`) of the names of modules.
    Raises ConfigError if it matches nothing in the model.
    """
    found = _named(model, pattern) if pattern else _repeated(model)
    return [b for b in dict.fromkeys(found) if any(True for _ in b.parameters())]


def describe_blocks(found: Sequence[nn.Module]) -> str:
    """Returns a summary of the blocks, such as `12 blocks of Block`."""
    kinds = Counter(type(block).__name__ for block in found)
    return ", ".join(f"{n} block{'s' if n > 1 else ''} of {kind}" for kind, n in kinds.items()) or "no blocks"


def _named(model: nn.Module, pattern: str) -> list[nn.Module]:
    def wanted(name: str, module: nn.Module) -> bool:
        return type(module).__name__ == pattern or fnmatchcase(name, pattern)

    found = list(_outermost(model, wanted))
    if not found:
        classes = dict.fromkeys(type(m).__name__ for m in model.modules() if m is not model and _composite(m))
        raise ConfigError(
            f"blocks={pattern!r}: {type(model).__name__} has no such submodule; write the name of a class "
            f"({', '.join(classes)}) or a pattern of module names, such as encoder.layer.*"
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
        # Lists of single layers alone that stand beside blocks, such as heads, are not what makes a
        # model deep.
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and not any(map(_composite, m))]
        heads = {layer for members in lists for layer in members}
        alone = _outermost(model, lambda _, m: type(m) in runs and type(m) is not nn.Sequential)  # a stage of one block
        return sorted({*found, *alone} - heads, key=[*model.modules()].index)
    if found:
        return found
    return _mixed(model) or (list(model) if isinstance(model, nn.Sequential) else [])


def _runs(module: nn.Module) -> Iterator[nn.Module]:
    """Yields members of ModuleLists, and of the innermost Sequentials that are runs of one class."""
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
    alike = members > 1 and len(kinds) == 1 and all(map(_composite, module.children()))
    return isinstance(module, nn.Sequential) and alike


def _mixed(model: nn.Module) -> list[nn.Module]:
    """Returns members of Sequentials that have another member of their class beside them, the outermost."""
    wanted = set()
    for module in model.modules():
        if isinstance(module, nn.Sequential):
            kinds = Counter(type(child) for child in module if _composite(child) and type(child) is not nn.Sequential)
            wanted |= {kind for kind, n in kinds.items() if n > 1}
    return list(_outermost(model, lambda _, m: type(m) in wanted))


def _composite(module: nn.Module) -> bool:
    """Returns whether a module has submodules: a block, and not a single layer."""
    return next(module.children(), None) is not None
