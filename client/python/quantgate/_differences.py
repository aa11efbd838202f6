"""Where two tensors differ, bit by bit, and how a failed assertion shows it (docs/pytest.md section 3)."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from . import _engine
from ._tensors import _NUMPY, Given

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
_UNSIGNED = ("u8", "u4x2", "f8_e8m0")
_TWO_TO_A_BYTE = ("f4_e2m1x2", "i4x2", "u4x2", "nf4x2", "bnb_fp4x2")
_MAP_ROWS, _MAP_COLUMNS = 8, 64


class Elements:
    """The elements of a tensor: their codes, one to an entry, and the numbers that they stand for.

    Attributes
    ----------
    dtype : str
        The engine's name.
    shape : tuple of int
        Of the elements: of two codes a byte the last dim is twice that of the bytes.
    codes : array of unsigned integers, of ``shape``
    """

    def __init__(self, tensor: Any):
        array = _engine.array_of(tensor)
        self.dtype: str = tensor.dtype
        self.packed = self.dtype in _TWO_TO_A_BYTE
        if self.packed:
            array = np.stack([array & 0x0F, array >> 4], axis=-1).reshape(*array.shape[:-1], 2 * array.shape[-1])
        self.codes: np.ndarray = array
        self.shape: Tuple[int, ...] = tuple(array.shape)

    @property
    def size(self) -> int:
        return int(self.codes.size)

    def values(self, index: Any = Ellipsis) -> np.ndarray:
        """The numbers in binary64, of all elements or of those at ``index``; NaN where a dtype has none of its own."""
        codes = self.codes[index]
        if self.dtype == "f4_e2m1x2":
            return np.where(codes & 8, -_E2M1[codes & 7], _E2M1[codes & 7])
        if self.dtype == "i4x2":
            return ((codes.astype(np.int64) ^ 8) - 8).astype(np.float64)
        if self.dtype == "u4x2":
            return codes.astype(np.float64)
        known = _NUMPY.get(self.dtype)
        if known is None:
            return np.full(np.shape(codes), np.nan)
        with np.errstate(all="ignore"):
            return np.asarray(codes).view(known).astype(np.float64)

    def places(self) -> np.ndarray:
        """Codes in the order of their numbers, so that a difference counts codes of the dtype."""
        codes = self.codes.astype(np.int64)
        if self.dtype in _UNSIGNED or self.dtype in ("nf4x2", "bnb_fp4x2"):
            return codes
        width = 4 if self.packed else 8 * self.codes.itemsize
        if self.dtype[0] == "i":
            return np.where(codes >> (width - 1), codes - (1 << width), codes) if width < 64 else codes
        sign = codes >> (width - 1) & 1
        magnitude = codes & ((1 << (width - 1)) - 1)
        return np.where(sign, -magnitude, magnitude)

    def text(self, index: Tuple[int, ...]) -> str:
        """``-128 [0xf0]``."""
        digits = 1 if self.packed else 2 * self.codes.itemsize
        bits = f"0x{int(self.codes[index]):0{digits}x}"
        if self.dtype not in _NUMPY and not self.packed or self.dtype in ("nf4x2", "bnb_fp4x2"):
            return bits
        if self.dtype in ("i8", "i16", "i32", "i64"):
            return f"{int(self.codes[index].view(f'i{self.codes.itemsize}'))} [{bits}]"
        return f"{number(float(self.values(index)), self.dtype)} [{bits}]"


def _apart(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """|left - right| of 64 bits, at most the largest: as far as the engine counts, too."""
    with np.errstate(over="ignore"):
        gap = left - right
    wraps = ((left >= 0) != (right >= 0)) & ((gap >= 0) != (left >= 0))
    most = np.iinfo(np.int64).max
    return np.where(wraps | (gap == np.iinfo(np.int64).min), most, np.abs(gap))


def number(value: float, dtype: str = "f32") -> str:
    """A number with as many digits as its dtype needs to be told from its neighbours."""
    if np.isfinite(value) and abs(value) < 1e15 and value == int(value):
        return ("-" if np.signbit(value) else "") + str(abs(int(value)))
    return f"{value:.{17 if dtype == 'f64' else 9}g}"


def counted(count: int) -> str:
    return f"{count:,}"


def shape_text(shape: Sequence[int]) -> str:
    return "".join(f"[{size}]" for size in shape) or "[]"


class Difference:
    """What differs between a tensor and what it should be.

    Attributes
    ----------
    name : str
    count, total : int
        Elements that differ in any bit, and all of them. Where shape or dtype differ all of them do.
    first, worst : tuple of int, or None
        The first in row-major order, and the one that is most codes of its dtype away; at equal distance the first.
    mismatch : str
        What is told of other shapes or dtypes; else empty.
    """

    def __init__(self, name: str, mine: Optional[Given], theirs: Given):
        self.name = name
        self.mismatch = ""
        self.first: Optional[Tuple[int, ...]] = None
        self.worst: Optional[Tuple[int, ...]] = None
        self.worst_codes = 0
        self.theirs = Elements(theirs.tensor)
        self.total = self.theirs.size
        self.mask: Optional[np.ndarray] = None
        self.notes: List[str] = []
        if mine is None:
            self.mine: Optional[Elements] = None
            self.count, self.mismatch = self.total, "is absent"
            return
        self.mine = Elements(mine.tensor)
        if self.mine.shape != self.theirs.shape or self.mine.dtype != self.theirs.dtype:
            self.count = self.total
            self.mismatch = (f"is {self.mine.dtype}{shape_text(self.mine.shape)}, "
                             f"expected {self.theirs.dtype}{shape_text(self.theirs.shape)}")
            return
        self.mask = self.mine.codes != self.theirs.codes
        self.count = int(np.count_nonzero(self.mask))
        if self.count:
            self.first = self.index_of(int(np.argmax(self.mask)))
            # Zeros of either sign lie at one place and still differ, so that -1 stands for what does not.
            distances = np.where(self.mask, _apart(self.mine.places(), self.theirs.places()), -1)
            self.worst = self.index_of(int(np.argmax(distances)))
            self.worst_codes = int(distances.max())

    def index_of(self, flat: int) -> Tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(flat, self.theirs.shape))

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def headline(self) -> str:
        """``rowwise_data differs in 3 of 8,192 elements, first at (3, 5)``."""
        if self.mismatch:
            return f"{self.name} {self.mismatch}"
        place = f", first at {self.first}" if self.first is not None else ""
        return f"{self.name} differs in {counted(self.count)} of {counted(self.total)} elements{place}"

    def lines(self) -> List[str]:
        """The paragraph of a failed assertion."""
        what = f"{self.name} ({self.theirs.dtype}{shape_text(self.theirs.shape)})"
        if self.mismatch:
            return [f"{self.name} {self.mismatch}"]
        if not self.count:
            return [f"{what}: equal ({counted(self.total)})", *(f"  {note}" for note in self.notes)]
        lines = [f"{what}: {counted(self.count)} of {counted(self.total)} elements {'differs' if self.count == 1 else 'differ'}"]
        for label, index in (("first", self.first), ("worst", self.worst)):
            lines.append(f"  {self.element(label, index)}")
        lines[-1] += f", {codes_apart(self.worst_codes)}"
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  {line}" for line in map_lines(self.mask)]
        return lines

    def element(self, label: str, index: Optional[Tuple[int, ...]]) -> str:
        if index is None or self.mine is None:
            return ""
        return f"{label} {index}: {self.mine.text(index)}, expected {self.theirs.text(index)}"


def codes_apart(count: int) -> str:
    return "the same number" if count == 0 else f"{counted(count)} {'code' if count == 1 else 'codes'} apart"


def as_matrix(array: np.ndarray) -> np.ndarray:
    """[rows][columns], as the engine sees a tensor: the last dim is the columns."""
    if array.ndim == 0:
        return array.reshape(1, 1)
    if array.ndim == 1:
        return array.reshape(1, -1)
    return array.reshape(-1, array.shape[-1])


def _edges(size: int, cells: int) -> np.ndarray:
    return np.arange(cells + 1) * size // cells


def map_lines(mask: np.ndarray) -> List[str]:
    """A map of the elements that differ, in at most 8 lines of at most 64 cells, and what lies around them.

    A cell with any such element is never a dot.
    """
    matrix = as_matrix(mask)
    rows, columns = matrix.shape
    by_row, by_column = np.flatnonzero(matrix.any(axis=1)), np.flatnonzero(matrix.any(axis=0))
    lines = [f"in rows {by_row[0]} to {by_row[-1]} and columns {by_column[0]} to {by_column[-1]}"]
    if len(by_row) < by_row[-1] - by_row[0] + 1 or len(by_column) < by_column[-1] - by_column[0] + 1:
        lines[0] += f" ({counted(len(by_row))} rows, {counted(len(by_column))} columns)"
    down, across = _edges(rows, min(rows, _MAP_ROWS)), _edges(columns, min(columns, _MAP_COLUMNS))
    if rows * columns < 2:
        return lines
    counts = np.add.reduceat(np.add.reduceat(matrix.astype(np.int64), down[:-1], axis=0), across[:-1], axis=1)
    sizes = np.diff(down)[:, None] * np.diff(across)[None, :]
    width = len(str(rows - 1))
    for i, row in enumerate(counts):
        cells = "".join("." if not count else "#" if count == size else "+" if 2 * count >= size else "-"
                        for count, size in zip(row, sizes[i]))
        lines.append(f"row {down[i]:>{width}} {cells}")
    lines.append(f"a cell is {_span(down)} x {_span(across)} elements: # all differ, + half or more, - fewer, . none")
    return lines


def _span(edges: np.ndarray) -> str:
    sizes = np.diff(edges)
    low, high = int(sizes.min()), int(sizes.max())
    return str(low) if low == high else f"{low}-{high}"


class Nearer:
    """Which of two sides is nearer to the exact result, of elements that differ.

    The exact values may be known to half a unit of their last place only: an element where that could turn the answer
    is neither's.
    """

    def __init__(self, mine: np.ndarray, theirs: np.ndarray, exact: np.ndarray, half_unit: Any = 0.0):
        with np.errstate(all="ignore"):
            ours, other = mine - exact, theirs - exact
            known = np.isfinite(ours) & np.isfinite(other) & (mine != theirs)
            gap = np.abs(ours) - np.abs(other)
            # On one side of the exact value, or where one of them is it, the order is that of the numbers.
            certain = (ours * other >= 0) | (np.abs(gap) > 2 * half_unit)
        self.mine = int(np.count_nonzero(known & certain & (gap < 0)))
        self.theirs = int(np.count_nonzero(known & certain & (gap > 0)))
        self.neither = int(np.count_nonzero(known)) - self.mine - self.theirs
        self.gap = gap
        self.decided = known & certain

    def text(self, what: str) -> str:
        verdict = ("mine" if self.mine > self.theirs else "the expected" if self.theirs > self.mine else "neither")
        tail = f", neither in {counted(self.neither)}" if self.neither else ""
        return (f"nearer to {what}: {verdict} (mine in {counted(self.mine)}, "
                f"the expected in {counted(self.theirs)}{tail})")


def half_unit_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Half a unit in the last place of numbers of a dtype: what an exact value was rounded by, at most."""
    bits, least = {"f32": (23, -126), "bf16": (7, -126), "f16": (10, -14), "f64": (52, -1022)}[dtype]
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.where(np.isfinite(values), values, 0))[1] - 1
    return np.ldexp(0.5, np.maximum(exponent, least) - bits)
