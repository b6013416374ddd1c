"""Random programs for `advice`: steps as people write them, of NumPy's arrays or PyTorch's tensors.

A program is made of templates. In a template ``$x`` and ``$y`` stand for variables with vectors,
``$n`` and ``$m`` for variables that it binds, ``$e`` for an expression with a vector, ``$s`` for
one with a number, ``$c`` for a constant, and ``BODY`` for a block of further statements. The other
names, such as ``$l`` for a list, are in `_KINDS`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from textwrap import indent
from typing import Final, Literal, TypeAlias, TypeVar

__all__ = ["LIBRARIES", "Library", "program"]

Library: TypeAlias = Literal["numpy", "torch"]
_T = TypeVar("_T")
LIBRARIES: Final[tuple[Library, ...]] = ("numpy", "torch")

_KINDS: Final = {"x": "vector", "y": "vector", "l": "list", "t": "tuple", "d": "dict", "o": "box", "f": "function"}
"""What the variables that a template reads have."""
_NAMES: Final = ("a", "b", "c", "d", "h", "x", "y", "z", "u", "v", "w")
"""So few that programs bind their variables anew."""
_PLACEHOLDER: Final = re.compile(r"\$([a-z]+)")
_DEEPEST: Final = 2
"""So many blocks are inside one another."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """A template of a statement.

    Attributes
    ----------
    text : str
        The template.
    binds : dict
        What its new variables have, by their placeholders.
    stays : bool
        Whether what its block binds may be read behind it.
    """

    text: str
    binds: dict[str, str] = field(default_factory=dict)
    stays: bool = True


def _new(*texts: str, kind: str = "vector") -> list[_Statement]:
    return [_Statement(text, {"n": kind}) for text in texts]


# ------------------------------------------------------------------ expressions

_VECTORS: Final = (
    *("$x * $c", "$x + $y", "$x - $y", "$x * $y", "$c - $x", "$x / 2.0", "-$x", "abs($x)", "$x ** 2"),
    *("($x + $c) * $y", "$x * $c + $y * $c", "$x - $x.mean()", "$x / (1.0 + abs($y))", "$x[:] + $y[::1]"),
    *("$x * $c if FLAG else $y * $c", "($x if FLAG else $y) * 2.0", "sum([$x, $y])", "+$x", "$x + $e", "$e * $c"),
    *("scaled($x)", "scaled($x, by=$c)", "squash($x)", "squash($e)", "early($x)", "early($x, False)", "noted($x)"),
    *("pair($x)[0]", "table($x)['a']", "table($x)['b']", "boxed($x).value", "joined($x, $y)", "joined(*[$x, $y])"),
    *("by_name(first=$x, second=$y)", "by_name(**{'first': $x, 'second': $y})", "applied(squash, $x)"),
    *("applied(lambda v: v * $c, $x)", "adder($x)($y)", "NET.forward($x)", "NET($x)", "NET.doubled($x)", "$f($x)"),
    *("$l[0] + $x", "$t[1] * $c", "$d['p'] - $x", "$o.value + $x", "safe($x)", "cached(N) * $x", "shifted($x.copy())"),
    *("$l[-1] * $c", "functools.reduce(lambda p, q: p + q, $l)", "list(map(squash, $l))[0]", "next(turns($x))"),
    *("[$x * k for k in range(1, 3)][-1]", "max([$x, $y], key=lambda v: float(v.sum())) * 1.0", "scaled(v=$x)"),
    *("{k: $x * k for k in (1, 2)}[2]", "wrapped($x)", "twice_over($x)", "Keeper() + $x", "part0($x, $y)"),
    *("($x if TURN else $y) * 2.0", "$x * $c if TURN else $y * $c", "early($x, TURN > 0)", "early($e, TURN == 1)"),
    *("layered(ACTS[TURN], $x)", "layered(ACTS[0], $x)", "layered(ACTS[2], $x)", "ACTS[TURN]($x)", "NET.late($x)"),
    *("part1($x, $y)", "kept($x)", "same($x) + 1.0", "list(turns($x))[1]"),
)
_PLAIN: Final = ("$x * $c", "$x + $y", "$x * $y", "$x - $c", "$x / 2.0", "($x + $c) * $y", "scaled($x)")
_VIEWS: Final = ("$x[::-1]", "$x[:]", "same($x)", "$x.reshape(M, M).reshape(N)", "$x if FLAG else $y", "$l[0]", "$x")
_NUMBERS: Final = (
    *("float($x.sum())", "float($x[0])", "float($x.mean())", "float(($x * $y).sum())", "float($x.max())", "len($x)"),
    *("float($e.sum())", "sum(float((v * 2.0).sum()) for v in [$x, $y])", "sum(float(v[1]) for v in $l)"),
    *("len(f'{float($x[0]):.2f} {$x.shape}')", "len('%s %.1f' % ($x.shape, float($x[2])))", "remembered($x)"),
    *("float($d['p'][2])", "float($o.value.sum())", "float($t[0].sum())", "len([$x, $y])", "float($f($x)[3])"),
    *("sum(float(v.sum()) for v in turns($x))", "float(($x > 0.2).sum())", "len('{}'.format($x.sum()))"),
    *("float(halves($x)[0].sum())", "float(part0($x, $y)[1])", "float(part1($x, $y)[1])", "float($x[N // 2 :].sum())"),
)
_OF_NUMPY: Final = (
    *("np.tanh($x)", "np.sin($x) + $y", "np.exp(-abs($x))", "np.maximum($x, $y)", "np.maximum($x, 0.0)"),
    *("np.clip($x, -1.0, 1.0)", "np.where($x > 0, $x, $y)", "np.where($x > $c, $x, 0.0)", "np.add($x, $y)"),
    *("np.multiply($x, $c)", "$x.copy()", "$x.astype('f4').astype('f8')", "np.sort($x)", "np.cumsum($x) / N"),
    *("np.concatenate([$x[: N // 2], $y[N // 2 :]])", "np.roll($x, 1)", "np.square($x)", "np.sqrt(abs($x))"),
    *("np.stack([$x, $y]).mean(axis=0)", "np.add.reduce([$x, $y])", "np.array($x)", "np.linspace(0.0, $c, N)"),
    *(
        "np.ones(N)",
        "np.full(N, $c)",
        "np.arange(N) / N",
        "np.random.default_rng(3).random(N)",
        "$x.reshape(M, M).T.ravel()",
    ),
    *("($x.reshape(M, M) @ W).ravel()", "np.nan_to_num($x)", "np.einsum('i,i->i', $x, $y)", "np.array([$x, $y])[0]"),
    *("np.outer($x[:M], $y[:M]).ravel()", "np.add($x, 1.0, where=$y > 0, out=np.zeros(N))", "np.abs($x)"),
    *("np.subtract($x, $y, out=np.empty(N))", "np.hypot($x, $y)", "np.add.accumulate($x) / N", "np.sin(np.cos($x))"),
    *(
        "np.power($x, 2)",
        "$x.clip(0.0, 1.0)",
        "np.zeros_like($x) + $y",
        "np.where(FLAG, $x, $y)",
        "np.vstack([$x, $y])[1]",
    ),
)
_VIEWS_OF_NUMPY: Final = (
    *("np.asarray($x)", "np.flip($x)", "$x.view()", "np.squeeze($x)", "$x.real", "np.ascontiguousarray($x)"),
    *("np.atleast_1d($x)", "$x.reshape(M, M).T.T.ravel()", "np.broadcast_to($x, (N,))", "np.split($x, 1)[0]"),
)
_OF_TORCH: Final = (
    *("torch.tanh($x)", "$x.sin() + $y", "torch.exp(-abs($x))", "torch.maximum($x, $y)", "$x.relu()", "F.relu($x)"),
    *("torch.clamp($x, -1.0, 1.0)", "torch.where($x > 0, $x, $y)", "torch.add($x, $y)", "torch.add($x, $y, alpha=2)"),
    *("$x.clone()", "$x.double().float()", "torch.sort($x).values", "torch.sort($x)[0]", "torch.cumsum($x, 0) / N"),
    *("torch.cat([$x[: N // 2], $y[N // 2 :]])", "torch.roll($x, 1)", "torch.sqrt(abs($x))", "$x.softmax(0)"),
    *("torch.stack([$x, $y]).mean(0)", "torch.linspace(0.0, $c, N)", "torch.ones(N)", "torch.full((N,), $c)"),
    *(
        "torch.arange(N) / N",
        "($x.view(M, M) @ W).view(-1)",
        "MODEL($x.view(M, M)).flatten()",
        "torch.lerp($x, $y, 0.5)",
    ),
    *("LAYERS[0]($x.view(M, M)).flatten()", "F.linear($x.view(M, M), W).view(N)", "F.dropout($x, 0.0)", "$x.add($y)"),
    *("$x.mul($c).add_(1.0)", "$x.clone().add_($y)", "F.relu($x * 1.0, inplace=True)", "$x.to(torch.float64).float()"),
    *(
        "torch.addcmul($x, $x, $y)",
        "$x.sigmoid()",
        "F.silu($x)",
        "$x.view(M, M).t().reshape(N)",
        "torch.zeros_like($x)",
    ),
    *("F.layer_norm($x.view(M, M), (M,)).view(N)", "torch.add($x, $y, out=torch.empty(N))", "$x.pow(2)"),
    *("CHAIN($x.view(M, M)).view(N)", "torch.cat(torch.chunk($x, 2))", "torch.stack($x.view(M, M).unbind()).view(N)"),
)
_VIEWS_OF_TORCH: Final = (
    *("$x.detach()", "$x.view(N)", "torch.flatten($x)", "$x.contiguous()", "$x.float()", "$x.to(torch.float32)"),
    *(
        "$x.unsqueeze(0)[0]",
        "$x.view(M, M).t().t().reshape(N)",
        "torch.squeeze($x)",
        "$x.expand(N)",
        "$x.narrow(0, 0, N)",
    ),
    *("nn.Identity()($x)", "F.dropout($x, 0.5, training=False)", "torch.chunk($x, 1)[0]", "$x.data"),
)

# ------------------------------------------------------------------ statements

_COMMON: Final = (
    *(_new("$n = $e") * 5),
    _Statement("total += $s"),
    _Statement("total += $s"),
    _Statement("$x = $x * $c"),
)
_SIMPLE: Final = (
    *_new("$n = (\n    $e\n)", "$n: Any = $e", "$n = $m = $e", "$n = $e; total += 1.0", "$n = $e  # a comment"),
    *_new("$n = $v", "total += float(($n := $e).sum())", "if ($n := $e)[0] > $c:\n    total += 1.0"),
    *_new("$n = [$x, $y]", "$n = [$e, $e]", "$n = [$x * k for k in (1, 2)]", "$n = list(turns($x))", kind="list"),
    *_new("$n = list(pair($x))", "$n = [v * 2.0 for v in $l]", "$n = $l + [$x]", "$n = []\n$n.append($e)", kind="list"),
    *_new("$n = ($x, $y)", "$n = pair($x)", "$n = $x, $e", "$n = (*$l, $x)", "$n = halves($x)", kind="tuple"),
    *_new("$n = {'p': $x, 'q': $e}", "$n = dict(p=$e)", "$n = {}\n$n['p'] = $e", "$n = {**$d, 'q': $x}", kind="dict"),
    *_new("$n = Box($x)", "$n = Box($e)", "$n = boxed($x)", "$n = Box(None)\n$n.value = $e", kind="box"),
    *_new("$n = lambda v: v * $c", "$n = lambda v: v + $x", "$n = functools.partial(scaled, by=$c)", kind="function"),
    *_new("$n = adder($x)", "$n = squash", "$n = NET.forward", "def $n(v):\n    return v - $x", kind="function"),
    *_new("def $n(v, w=$x):\n    return v * w", "def $n(v):\n    made = v * $c\n    return made", kind="function"),
    *_new("for $n in ($x, $y):\n    total += $s", "for $n in $l:\n    total += float($n.sum())"),
    *_new("for $n in turns($x):\n    total += float($n[1])", "for _, $n in enumerate([$x, $e]):\n    total += $s"),
    *_new("for $n in $d.values():\n    total += float($n.sum())", "$n, *_ = [$x, $e, $y]", "$n = $l.pop(0) * 1.0"),
    _Statement("$n, $m = $e, $e", {"n": "vector", "m": "vector"}),
    _Statement("$n, $m = pair($x)", {"n": "vector", "m": "vector"}),
    _Statement("($n, $m), w0 = pair($x), 2.0", {"n": "vector", "m": "vector"}),
    *(
        _Statement(text)
        for text in (
            *(
                "$x = $e if TURN else $x",
                "total += $s if TURN else 1.0",
                "if TURN: total += float($x[2])",
                "$x = ACTS[0]($x)",
            ),
            *(
                "w9 = TURN and $s; total += w9",
                "total += float((w9 := $e).sum()) if TURN == 0 else 0.0",
                "if TURN: $x = $e",
            ),
            *(
                "if TURN == 1: w10 = $e; total += float(w10.sum())",
                "for $k in range(TURN): w11 = $e; total += float(w11[1])",
            ),
            *(
                "if TURN == 2: raise_nothing($x)",
                "KEPT.append($x) if TURN else None",
                "ACTS[TURN]($x)[0]",
                "$x = ACTS[TURN]($x)",
            ),
            *("$x += $y", "$x *= $c", "$x -= $x.mean()", "$x[:] = $y", "$x[: N // 2] = $c", "$x = $e", "$x += $e"),
            *("$x, $y = $y, $x", "KEPT.append($x)", "KEPT.append($e)", "KEPT.append(float($x.sum()))", "$l.append($x)"),
            *(
                "$l.append($e)",
                "$l[0] = $e",
                "$d['q'] = $x",
                "$o.value = $x",
                "$o.value = $o.value * $c",
                "$l.clear()\n$l.append($e)",
            ),
            *("NET.hidden = $x", "NET.hidden = $e", "filled($x)", "total += 1.0 if $x[0] > $c else 2.0", "NET.add($x)"),
            *(
                "assert $x.shape == $y.shape, $x",
                "$x = $x + $y",
                "$x = $e if FLAG else $x",
                "shifted($x)",
                "remembered($e)",
            ),
            *("text = f'{$x[0]:.3f} {float($y.sum())!r}'\ntotal += len(text)", "text = 'x * 2'\ntotal += len(text)"),
            *("print(f'{$x.mean():.2f}', end='', file=NOWHERE)", "print('%s' % $x.shape, $y[0], file=NOWHERE)"),
            *(
                "for $k in range(2):\n    $x = $x * $c",
                "for $k in range(2):\n    $x = $x + $y * $k",
                "$x.sum(); $y.sum()",
            ),
            *(
                "if total > 1e12:\n    return total",
                "if FLAG: total += float($x[2])",
                "while total < -1e9:\n    total += $s",
            ),
            *(
                "total += float($x[0]) if total > 1e9 else float($y[1])",
                "_ = $x",
                "_ = $e",
                "$x = None; $x = cached(N) * 1.0",
            ),
            *("del $y", "del $y", "del $x, $y", "for layer in (squash, scaled):\n    $x = layer($x)"),
            *(
                "with held($x) as w1:\n    total += float(w1.sum())",
                "with held($x) as $x:\n    total += float($x.sum())",
            ),
            *(
                "match $x:\n    case []:\n        pass\n    case w2:\n        total += float(w2[0])",
                "setattr(NET, 'hidden', $x)",
            ),
            *(
                "for k, w3 in $d.items():\n    total += float(w3[1])",
                "for w4, w5 in zip([$x], [$y]):\n    total += float(w5[0])",
            ),
            *(
                "try:\n    raise ValueError($x)\nexcept ValueError as error:\n    total += 1.0",
                "$x = $x[::-1]",
                "$x = +$x",
            ),
            *(
                "try:\n    failing($x)\nexcept ValueError as error:\n    KEPT.append(error)",
                "globals()['G'] = $x\ntotal += 1",
            ),
            *("try:\n    failing($x)\nexcept ValueError:\n    total += 1.0\nelse:\n    total += $s", "$x = $x - $e"),
        )
    ),
)
_NUMPY: Final = tuple(
    _Statement(text)
    for text in (
        *("np.tanh($x, out=$x)", "np.multiply($x, $c, out=$y)", "np.add($x, $y, $x)", "$x.fill($c)", "$x.sort()"),
        *("np.copyto($x, $y)", "$x = np.tanh($x)", "$x = np.multiply($x, $y)", "$x /= abs($x).max() + 1.0", "$x **= 2"),
        *("np.add.at($x, [0, 1], $c)", "$x[$x > $c] = 0.0", "$x.reshape(M, M)[0] = $c", "$x = np.negative($x)"),
        *(
            "$x.reshape(M, M).T[:] *= $c",
            "np.clip($x, 0.0, 1.0, out=$x)",
            "$x = $x.copy()",
            "$x = np.clip($x, 0.0, 1.0)",
        ),
    )
)
_TORCH: Final = (
    *(
        _Statement(text)
        for text in (
            *("$x.add_($y)", "$x.mul_($c)", "$x = $x.mul_($c)", "torch.tanh($x, out=$y)", "torch.add($x, $y, out=$x)"),
            *("F.relu($x, inplace=True)", "$x = F.relu($x, inplace=True)", "$x.copy_($y)", "$x = torch.tanh($x)"),
            *(
                "$x.resize_(N)",
                "$x.zero_()",
                "$x.view(M, M)[0] = $c",
                "$x[$x > $c] = 0.0",
                "$x.view(M, M).t().mul_($c)",
            ),
            *("$x = $x.view(M, M)\nfor layer in LAYERS:\n    $x = layer($x)\n$x = $x.flatten()", "$x.clamp_(0.0, 1.0)"),
            *(
                "w6 = $x.view(M, M)\nfor layer in MODEL:\n    w6 = layer(w6)\ntotal += float(w6.sum())",
                "$x = $x.clone()",
            ),
            *(
                "with torch.enable_grad():\n    w7 = $x.clone().requires_grad_()\n    (w7 * $y).sum().backward()",
                "$x.set_($y)",
            ),
            *(
                "loss = MODEL($x.view(M, M)).square().mean()\ntotal += loss.item()",
                "$x = $x.clamp(0.0, 1.0)",
                "$x.data = $y",
            ),
            *("with torch.enable_grad():\n    w8 = MODEL($x.detach().view(M, M))\ntotal += float(w8[0, 0])",),
        )
    ),
    *(_Statement(f"with {what}:\n    BODY") for what in ("torch.no_grad()", "torch.inference_mode()")),
)
_BLOCKS: Final = (
    _Statement("for $k in range(2):\n    BODY"),
    _Statement("for $k in range(3):\n    BODY\n    if $k:\n        continue\n    BODY"),
    _Statement("for $n in [$x, $y]:\n    BODY", {"n": "vector"}),
    _Statement("for $n in $l:\n    BODY", {"n": "vector"}),
    _Statement("for $k in range(2):\n    BODY\n    if total > 1e12:\n        break\nelse:\n    BODY"),
    _Statement("$k = 0\nwhile $k < 2:\n    $k += 1\n    BODY"),
    _Statement("if FLAG:\n    BODY"),
    _Statement("if TURN:\n    BODY", stays=False),
    _Statement("if TURN == 1:\n    BODY\nelse:\n    BODY", stays=False),
    _Statement("for $k in range(TURN):\n    BODY", stays=False),
    _Statement("while total < TURN:\n    total += 1.0\n    BODY", stays=False),
    _Statement("if FLAG:\n    BODY\nelse:\n    BODY", stays=False),
    _Statement("if $x[0] > $c:\n    BODY\nelif FLAG:\n    BODY\nelse:\n    BODY", stays=False),
    _Statement("try:\n    BODY\nfinally:\n    BODY"),
    _Statement("try:\n    BODY\nexcept ValueError:\n    BODY", stays=False),
    _Statement("try:\n    BODY\n    failing($x)\nexcept ValueError:\n    BODY", stays=False),
    _Statement("with contextlib.suppress(ValueError):\n    BODY"),
    _Statement("with np.errstate(all='ignore'):\n    BODY"),
    _Statement("with contextlib.nullcontext($x) as $n:\n    BODY", {"n": "vector"}),
    _Statement("with held($e) as $n:\n    BODY", {"n": "vector"}),
    _Statement("match total:\n    case float():\n        BODY\n    case _:\n        BODY", stays=False),
    _Statement("def inner():\n    nonlocal total\n    total += $s\n    return $e\n$n = inner()", {"n": "vector"}),
    _Statement("def inner(v):\n    w = v * $c\n    w = w + 1.0\n    return w\n$n = inner($x)", {"n": "vector"}),
)

# ------------------------------------------------------------------ what every program has

_BEFORE: Final = '''# runs as {role}
import contextlib
import functools
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
{imports}
import disposescope as ds

M = {side}
N = M * M
FLAG = True
COUNT = 0
KEPT = []
NOWHERE = io.StringIO()
RESULTS = []
workspace = ds.Workspace("advice")
{setup}

@dataclass
class Box:
    value: Any

class Keeper:
    __array_ufunc__ = None

    def __add__(self, other):
        KEPT.append(other)
        return other * 2.0

class Net:
    def __init__(self):
        self.hidden = None
        self.all = []

    def forward(self, v):
        self.hidden = v * 0.5
        return self.hidden + 1.0

    def __call__(self, v):
        h = v * 0.5
        g = h + 1.0
        return g

    def late(self, v):
        h = v * 2.0
        self.hidden = h if TURN else None
        return h + 1.0

    def doubled(self, v):
        return v * 2.0

    def add(self, v):
        self.all.append(v)

NET = Net()
TURN = 0
ACTS = {acts}

def logged(function):
    @functools.wraps(function)
    def around(*args, **options):
        result = function(*args, **options)
        NOWHERE.write(str(result.shape))
        return result
    return around

def scaled(v, by=2.0):
    made = v * by
    return made + 1.0

def same(v):
    return v

def squash(v):
    v = v * 0.5
    v = v - 0.25
    return v

def layered(layer, v):
    h = v + 1.0
    h2 = layer(h)
    g = h2 * 2.0
    return g

def raise_nothing(v):
    try:
        failing(v)
    except ValueError:
        return v

def halves(v):
    return v[: N // 2], v[N // 2 :]

def kept(v):
    KEPT.append(v)
    return v * 2.0

def noted(v):
    global COUNT
    COUNT += 1
    return v + COUNT

def shifted(v):
    v += 1.0
    return v

def filled(v):
    v[:] = 0.5

def pair(v):
    return v * 2.0, v + 1.0

def table(v):
    return {{"a": v * 2.0, "b": v}}

def boxed(v):
    return Box(v * 2.0)

def early(v, flag=True):
    if flag:
        return v
    return v * 2.0

@logged
def wrapped(v):
    h = v * 3.0
    return h - 1.0

@functools.lru_cache(maxsize=None)
def cached(n):
    return {ones} * 0.5

def turns(v):
    for k in range(2):
        yield v * (k + 1)

def joined(*vs):
    return sum(vs[1:], vs[0])

def by_name(**vs):
    return vs["first"] + vs["second"]

def applied(f, v):
    return f(v)

def adder(v):
    def add(w):
        return w + v
    return add

def remembered(v, store=[]):
    store.append(v)
    return len(store)

def safe(v):
    try:
        return v * 2.0
    finally:
        NOWHERE.write("x")

def twice_over(v):
    h = v + 1.0
    h = squash(h)
    t = h * 2.0
    return t

def failing(v):
    w = v * 2.0
    if w[0] < 1e9:
        raise ValueError(float(w.sum()))

@contextlib.contextmanager
def held(v):
    w = v * 2.0
    yield w

def digest():
    """The sums of what the program has kept, which is then forgotten."""
    pending = [KEPT, NET.hidden, NET.all, *remembered.__defaults__]
    found = []
    while pending:
        each = pending.pop()
        pending += each if isinstance(each, (list, tuple)) else list(each.values()) if isinstance(each, dict) else []
        found += [float(each.sum())] if hasattr(each, "sum") else []
        found += [str(each)[:20]] if isinstance(each, (float, ValueError)) else []
    {forget}
    return found
'''
_FORGET: Final = "KEPT.clear(); NET.hidden = None; NET.all.clear(); remembered.__defaults__[0].clear()"
_OF_TORCH_ONLY: Final = """
W = torch.eye(M) * 0.5
MODEL = nn.Sequential(nn.Linear(M, M), nn.Tanh(), nn.Linear(M, M))
LAYERS = nn.ModuleList([nn.Linear(M, M), nn.ReLU(), nn.Linear(M, M)])
with torch.no_grad():
    for index, parameter in enumerate([*MODEL.parameters(), *LAYERS.parameters()]):
        parameter.copy_(torch.linspace(-0.1, 0.1 + index * 0.01, parameter.numel()).view(parameter.shape))

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Tanh(), nn.Sigmoid()])

    def forward(self, v):
        out = v * 0.5
        for layer in self.layers:
            out = layer(out)
        skip = out + v
        return skip

CHAIN = Chain()
"""


class _Writer:
    """Writes a block of statements, and knows the variables that are bound there."""

    def __init__(self, source: random.Random, library: Library, *, returns: bool, varies: bool, parts: int = 2) -> None:
        self.random = source
        self.library = library
        # Whether the block is in a function: that may return at once, and have variables around.
        self.returns = returns
        self.kinds: dict[str, str] = {}
        self.depth = 0
        of_numpy = library == "numpy"
        # The functions `part0` and `part1` call only those before themselves.
        self._missing = [f"part{number}" for number in range(parts, 2)] + ([] if varies else ["TURN"])
        # Each block has some of the templates only: with all of them, something keeps each array.
        self._vectors = _PLAIN + self._some(_VECTORS + (_OF_NUMPY if of_numpy else _OF_TORCH), 30)
        self._views = (*self._some(_VIEWS + (_VIEWS_OF_NUMPY if of_numpy else _VIEWS_OF_TORCH), 5), "$x")
        self._simple = _COMMON + self._some(_SIMPLE + (_NUMPY if of_numpy else _TORCH), 14)
        self._blocks = self._some(_BLOCKS, 4)

    def _some(self, all_of_them: tuple[_T, ...], count: int) -> tuple[_T, ...]:
        return tuple(self.random.sample(all_of_them, count))

    def large(self) -> str:
        """Return statements with arrays that are larger than others, for a peak there."""
        name, count = self.random.choice(("large", "big")), self.random.choice(("2", "3"))
        made = f"np.ones({count} * N)" if self.library == "numpy" else f"torch.ones({count} * N)"
        return f"{name} = {made}\ntotal += float(({name} + 1.0).sum())\ndel {name}"

    def block(self, count: int) -> str:
        """Return statements."""
        return "\n".join(self._statement() for _ in range(count))

    def first(self) -> str:
        """Return the first statements, which bind two vectors."""
        made = "np.linspace(0.0, 1.0, N)" if self.library == "numpy" else "torch.linspace(0.0, 1.0, N)"
        names = self.random.sample(_NAMES, 2)
        self.kinds.update(dict.fromkeys(names, "vector"))
        return f"total = 0.0\n{names[0]} = {made}\n{names[1]} = {names[0]} * 0.5 + 1.0"

    def expression(self, level: int = 0) -> str:
        """Return an expression with a vector of its own, or with a view now and then."""
        texts = self._views if self.random.random() < 0.1 else self._vectors
        return self._filled(texts, level)

    def ending(self) -> str:
        """Return the last statements, which use some variables once more."""
        names = [name for name, kind in self.kinds.items() if kind == "vector"]
        used = self.random.sample(names, min(len(names), self.random.randint(1, 2)))
        return "\n".join(f"total += float({name}.sum())" for name in used) or "total += 1.0"

    def _statement(self) -> str:
        while True:
            is_block = self.depth < _DEEPEST and self.random.random() < 0.2
            statement = self.random.choice(self._blocks if is_block else self._simple)
            text = statement.text
            if not self.returns and ("return total" in text or "nonlocal" in text):
                continue
            if (self.depth and text.startswith("del")) or self._is_missing(text):
                continue
            filled = self._fill_statement(statement)
            if filled is not None:
                return filled

    def _fill_statement(self, statement: _Statement) -> str | None:
        names: dict[str, str] = {}
        for placeholder in dict.fromkeys(_PLACEHOLDER.findall(statement.text)):
            if placeholder == "k":
                # Each loop counts with a variable of its own.
                names["k"] = f"k{self.depth}"
            elif placeholder in statement.binds or placeholder == "m":
                kind = statement.binds.get(placeholder, "vector")
                free = [each for each in _NAMES if self.kinds.get(each, kind) == kind and each not in names.values()]
                if not free:
                    return None
                names[placeholder] = self.random.choice(free)
            elif placeholder in _KINDS and (name := self._variable(_KINDS[placeholder], names)) is not None:
                names[placeholder] = name
            elif placeholder in _KINDS:
                return None
        head, *bodies = re.split(r"( *)BODY", statement.text)
        text = self._with(head, names)
        if statement.text.startswith("del"):
            gone = {names.get(placeholder, "") for placeholder in ("x", "y")}
            if not set(self._vectors_bound()) - gone:
                return None
            self.kinds = {name: kind for name, kind in self.kinds.items() if name not in gone}
        if not bodies:
            self.kinds.update({names[each]: kind for each, kind in statement.binds.items()})
            return text
        before = dict(self.kinds)
        self.kinds.update({names[each]: kind for each, kind in statement.binds.items()})
        self.depth += 1
        for space, after in zip(bodies[::2], bodies[1::2], strict=True):
            text += indent(self.block(self.random.randint(1, 3)), space) + self._with(after, names)
            if not statement.stays:
                self.kinds = dict(before)
        self.depth -= 1
        if self.random.random() < 0.6:
            self.kinds = before
        return text

    def _is_missing(self, text: str) -> bool:
        return any(each in text for each in self._missing)

    def _vectors_bound(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "vector"]

    def _variable(self, kind: str, taken: dict[str, str]) -> str | None:
        found = [name for name, each in self.kinds.items() if each == kind]
        fresh = [name for name in found if name not in taken.values()]
        return self.random.choice(fresh or found) if found else None

    def _filled(self, texts: tuple[str, ...], level: int) -> str:
        while True:
            text = self.random.choice(texts)
            if self._is_missing(text):
                continue
            names: dict[str, str] = {}
            for placeholder in dict.fromkeys(_PLACEHOLDER.findall(text)):
                name = self._variable(_KINDS[placeholder], names) if placeholder in _KINDS else ""
                if name is None or (placeholder in "es" and level > 1):
                    break
                names[placeholder] = name
            else:
                return self._with(text, names, level + 1)

    def _with(self, text: str, names: dict[str, str], level: int = 0) -> str:
        """Return a text with its placeholders filled."""

        def filled(match: re.Match[str]) -> str:
            placeholder = match[1]
            if names.get(placeholder):
                return names[placeholder]
            if placeholder == "c":
                return self.random.choice(("2.0", "0.5", "1.0", "3.0", "0.25"))
            if placeholder == "s":
                return self._filled(_NUMBERS, level)
            if placeholder == "v":
                return self._filled(self._views, level)
            return self.expression(level)

        return _PLACEHOLDER.sub(filled, text)


def program(source: random.Random, library: Library) -> str:
    """Return the text of a random program.

    It runs its passes itself. Its first line says whether as the main program or as a module. Where
    its passes differ, each has a key of its own.
    """
    role = source.choice(("__main__", "program"))
    side = source.choice((100, 200, 260))
    is_torch = library == "torch"
    text = _BEFORE.format(
        role=role,
        side=side,
        imports="import torch\nimport torch.nn.functional as F\nfrom torch import nn\n" if is_torch else "",
        setup="" if is_torch else "W = np.eye(M) * 0.5\n",
        acts=(
            "[torch.nn.Tanh(), torch.nn.Identity(), torch.nn.ReLU(inplace=True)]"
            if is_torch
            else "[lambda v: v * 2.0, lambda v: v, lambda v: np.add(v, 1.0, out=v)]"
        ),
        ones="torch.ones(n)" if is_torch else "np.ones(n)",
        forget=_FORGET if is_torch or source.random() < 0.7 else "pass",
    )
    text += _OF_TORCH_ONLY if is_torch else ""
    varies = source.random() < 0.4
    for number in range(2):
        text += _part(source, library, number, varies)
    is_function = role == "program" or source.random() < 0.7
    writer = _Writer(source, library, returns=is_function, varies=varies)
    parts = [writer.first(), writer.block(source.randint(2, 8)), writer.block(source.randint(0, 4)), writer.ending()]
    if source.random() < 0.8:
        parts.insert(source.choice((2, 2, 3, 4)), writer.large())
    body = "\n".join(part for part in parts if part)
    if is_torch and source.random() < 0.6:
        body = "with torch.no_grad():\n" + indent(body, "    ")
    if is_function:
        text += f"\ndef step():\n{indent(body, '    ')}\n    return total\n"
        body = "total = step()"
    body += "\nRESULTS.append((total, digest()))"
    passes = (
        "for TURN in range(3):\n    with workspace.run(key=TURN):"
        if varies
        else "for _ in range(3):\n    with workspace.run():"
    )
    return f"{text}\n{passes}\n{indent(body, ' ' * 8)}\n"


def _part(source: random.Random, library: Library, number: int, varies: bool) -> str:
    """Return a function of two vectors that returns one."""
    writer = _Writer(source, library, returns=True, varies=varies, parts=number)
    parameters = source.sample(_NAMES, 2)
    writer.kinds = dict.fromkeys(parameters, "vector")
    body = writer.block(source.randint(1, 5))
    bound = [name for name, kind in writer.kinds.items() if kind == "vector"]
    returned = source.choice(bound) if source.random() < 0.5 else writer.expression()
    body = f"total = 0.0\n{body}\nreturn {returned}"
    return f"\ndef part{number}({', '.join(parameters)}):\n{indent(body, '    ')}\n"
