"""The kernels: gather, turn, scatter.

How work is cut: a *vector* is one head of one row, ``[head_dim]``; a program takes ``TILE`` of them in one layer,
counted over rows x heads, so that 3 or 9 KV heads leave no lanes idle. Axis 1 of the grid is the layer. Everything is
read once and written once, nothing is shared between programs: shared memory would gain nothing.

Arithmetic is fp32 with explicit roundings; ``narrow`` is the one place where bits are lost, and launches switch
floating-point fusion off. Offsets are int64: a layer of an arena may lie past 2^31 elements. Index arrays are slices of
staging buffers, so neither their alignment nor the number of rows enters a specialisation: that would compile in the
middle of serving.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import decode_fp8, encode_fp8, narrow, widen


@triton.jit
def read(at, mask, scale, DTYPE: tl.constexpr, FP8: tl.constexpr, BITWISE: tl.constexpr):
    """Load cells as fp32 numbers of the model dtype; those of an fp8 cache are multiplied by ``scale``."""
    cells = tl.load(at, mask=mask)
    if FP8 is None:
        return widen(cells)
    return widen(narrow(decode_fp8(cells, FP8) * scale, DTYPE, BITWISE))


@triton.jit
def write(at, x, mask, scale, DTYPE: tl.constexpr, FP8: tl.constexpr, BITWISE: tl.constexpr):
    """Round fp32 numbers to the model dtype and store them; into an fp8 cache, divided by ``scale``."""
    cells = narrow(x, DTYPE, BITWISE)
    if FP8 is not None:
        cells = encode_fp8(tl.div_rn(widen(cells), scale), FP8, BITWISE)
    tl.store(at, cells, mask=mask)


@triton.jit
def features(ok, FIRST: tl.constexpr, END: tl.constexpr, LANES: tl.constexpr):
    """Feature numbers ``[1, LANES]`` and the mask of ``FIRST..END``; by rows alone where no lane is idle."""
    at = tl.arange(0, LANES)[None, :]
    mask = ok[:, None]
    if FIRST > 0:
        mask = mask & (at >= FIRST)
    if END < LANES:
        mask = mask & (at < END)
    return at, mask


@triton.jit
def copy(
    source,
    target,
    ok,
    scale,
    FIRST: tl.constexpr,
    END: tl.constexpr,
    LANES: tl.constexpr,
    DTYPE: tl.constexpr,
    FROM_FP8: tl.constexpr,
    TO_FP8: tl.constexpr,
    BITWISE: tl.constexpr,
):
    """Features ``FIRST..END`` of vectors at ``source`` to ``target`` (pointers ``[TILE, 1]``), not turned."""
    at, mask = features(ok, FIRST, END, LANES)
    if FROM_FP8 is None and TO_FP8 is None:
        tl.store(target + at, tl.load(source + at, mask=mask), mask=mask)
    else:
        x = read(source + at, mask, scale, DTYPE, FROM_FP8, BITWISE)
        write(target + at, x, mask, scale, DTYPE, TO_FP8, BITWISE)


@triton.jit
def turn(x1, x2, cos, sin, TURN: tl.constexpr, DTYPE: tl.constexpr, BITWISE: tl.constexpr):
    """Rotate pairs (``TURN`` "op": one rounding, at the store; "native": one per operation) or "undo" it."""
    if TURN == "op":
        return x1 * cos - x2 * sin, x2 * cos + x1 * sin
    elif TURN == "native":
        a = widen(narrow(x1 * cos, DTYPE, BITWISE)) - widen(narrow(x2 * sin, DTYPE, BITWISE))
        b = widen(narrow(x2 * cos, DTYPE, BITWISE)) + widen(narrow(x1 * sin, DTYPE, BITWISE))
        return a, b
    else:
        norm = cos * cos + sin * sin
        return tl.div_rn(x1 * cos + x2 * sin, norm), tl.div_rn(x2 * cos - x1 * sin, norm)


@triton.jit
def rotate(
    source,
    target,
    table,
    ok,
    turned,
    scale,
    PAIRS: tl.constexpr,
    PAIR_LANES: tl.constexpr,
    NEOX: tl.constexpr,
    TURN: tl.constexpr,
    DTYPE: tl.constexpr,
    FROM_FP8: tl.constexpr,
    TO_FP8: tl.constexpr,
    BITWISE: tl.constexpr,
):
    """The first ``2 * PAIRS`` features, turned by the rows of cosines and sines at ``table`` (``[TILE, 1]``).

    ``turned``: whether the layer rotates at all; if not, the angle is 0.
    """
    pair, mask = features(ok, 0, PAIRS, PAIR_LANES)
    listed = mask & turned
    cos = widen(narrow(widen(tl.load(table + pair, mask=listed, other=1.0)), DTYPE, BITWISE))
    sin = widen(narrow(widen(tl.load(table + PAIRS + pair, mask=listed, other=0.0)), DTYPE, BITWISE))
    if NEOX:
        x1 = read(source + pair, mask, scale, DTYPE, FROM_FP8, BITWISE)
        x2 = read(source + PAIRS + pair, mask, scale, DTYPE, FROM_FP8, BITWISE)
        y1, y2 = turn(x1, x2, cos, sin, TURN, DTYPE, BITWISE)
        write(target + pair, y1, mask, scale, DTYPE, TO_FP8, BITWISE)
        write(target + PAIRS + pair, y2, mask, scale, DTYPE, TO_FP8, BITWISE)
    else:
        # Whole vectors are loaded and split: pairs that lie side by side, read apart, would be loads of one element.
        at, both = features(ok, 0, 2 * PAIRS, 2 * PAIR_LANES)
        x = read(source + at, both, scale, DTYPE, FROM_FP8, BITWISE)
        x1, x2 = tl.split(tl.reshape(x, (x.shape[0], PAIR_LANES, 2)))
        y1, y2 = turn(x1, x2, cos, sin, TURN, DTYPE, BITWISE)
        y = tl.reshape(tl.join(y1, y2), (x.shape[0], 2 * PAIR_LANES))
        write(target + at, y, both, scale, DTYPE, TO_FP8, BITWISE)


@triton.jit
def cells(base, layer, row, head, layer_stride, row_stride, head_stride):
    """Pointers ``[TILE, 1]`` to vectors of an arena."""
    return base + layer.to(tl.int64) * layer_stride + (row * row_stride + head * head_stride)[:, None]


@triton.jit
def paged_cells(
    bases,
    layer,
    slot,
    head,
    block_stride,
    slot_stride,
    head_stride,
    BLOCK: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Pointers ``[TILE, 1]`` to vectors of a paged cache. ``ALIGNED``: every base is a multiple of 16 bytes."""
    base = tl.load(bases + layer).to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        base = tl.multiple_of(base, 16)
    block = slot // BLOCK
    return base + (block * block_stride + (slot - block * BLOCK) * slot_stride + head * head_stride)[:, None]


@triton.jit
def places(indices, row, rows):
    """The rows' entries of an index array as int64; -1 past the last row."""
    return tl.load(indices + row, mask=row < rows, other=-1).to(tl.int64)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["arena_rows", "positions", "slots"])
def transfer(
    arena_keys,
    arena_values,
    arena_rows,
    positions,
    slots,
    key_bases,
    value_bases,
    key_scales,
    value_scales,
    cos_sin,
    table_of_layer,
    rows,
    table_stride,
    position_stride,
    arena_key_layer,
    arena_key_row,
    arena_key_head,
    arena_value_layer,
    arena_value_row,
    arena_value_head,
    key_block,
    key_slot,
    key_head,
    value_block,
    value_slot,
    value_head,
    INTO_CACHE: tl.constexpr,
    TURN: tl.constexpr,
    NEOX: tl.constexpr,
    FP8: tl.constexpr,
    BITWISE: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIR_LANES: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Arena rows into a paged cache, keys rotated, or back, keys un-rotated; all layers and rows of one step.

    A row whose slot or arena row is negative is skipped. ``TURN`` is None where keys are moved as they are.
    """
    layer = tl.program_id(1)
    number = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = number // HEADS
    head = (number - row * HEADS).to(tl.int64)
    slot = places(slots, row, rows)
    arena_row = places(arena_rows, row, rows)
    ok = (slot >= 0) & (arena_row >= 0)

    DTYPE: tl.constexpr = arena_keys.dtype.element_ty
    ELEMENT: tl.constexpr = DTYPE if FP8 is None else tl.uint8
    FROM_FP8: tl.constexpr = None if INTO_CACHE else FP8
    TO_FP8: tl.constexpr = FP8 if INTO_CACHE else None
    key_scale = 1.0 if key_scales is None else tl.load(key_scales + layer)
    value_scale = 1.0 if value_scales is None else tl.load(value_scales + layer)
    arena_key = cells(arena_keys, layer, arena_row, head, arena_key_layer, arena_key_row, arena_key_head)
    arena_value = cells(arena_values, layer, arena_row, head, arena_value_layer, arena_value_row, arena_value_head)
    key = paged_cells(key_bases, layer, slot, head, key_block, key_slot, key_head, BLOCK, ELEMENT, ALIGNED)
    value = paged_cells(value_bases, layer, slot, head, value_block, value_slot, value_head, BLOCK, ELEMENT, ALIGNED)
    if INTO_CACHE:
        key_from, key_to, value_from, value_to = arena_key, key, arena_value, value
    else:
        key_from, key_to, value_from, value_to = key, arena_key, value, arena_value

    copy(value_from, value_to, ok, value_scale, 0, SIZE, LANES, DTYPE, FROM_FP8, TO_FP8, BITWISE)
    if TURN is None:
        copy(key_from, key_to, ok, key_scale, 0, SIZE, LANES, DTYPE, FROM_FP8, TO_FP8, BITWISE)
    else:
        table = cos_sin + (places(positions, row, rows) * position_stride)[:, None]
        turned = ok[:, None]
        if table_of_layer is not None:
            which = tl.broadcast_to(tl.load(table_of_layer + layer).to(tl.int64), (TILE,))[:, None]
            turned = turned & (which >= 0)
            table += which * table_stride
        rotate(
            key_from,
            key_to,
            table,
            ok,
            turned,
            key_scale,
            PAIRS,
            PAIR_LANES,
            NEOX,
            TURN,
            DTYPE,
            FROM_FP8,
            TO_FP8,
            BITWISE,
        )
        if SIZE > 2 * PAIRS:
            copy(key_from, key_to, ok, key_scale, 2 * PAIRS, SIZE, LANES, DTYPE, FROM_FP8, TO_FP8, BITWISE)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["source_rows", "target_rows"])
def store_rows(
    keys,
    values,
    source_rows,
    target_rows,
    arena_keys,
    arena_values,
    rows,
    key_row,
    key_head,
    value_row,
    value_head,
    arena_key_row,
    arena_key_head,
    arena_value_row,
    arena_value_head,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Projected keys and values of one layer, row by row, to rows of the arena."""
    number = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = number // HEADS
    head = (number - row * HEADS).to(tl.int64)
    source = places(source_rows, row, rows)
    target = places(target_rows, row, rows)
    at, mask = features((source >= 0) & (target >= 0), 0, SIZE, LANES)
    key = keys + (source * key_row + head * key_head)[:, None] + at
    key_to = arena_keys + (target * arena_key_row + head * arena_key_head)[:, None] + at
    tl.store(key_to, tl.load(key, mask=mask), mask=mask)
    value = values + (source * value_row + head * value_head)[:, None] + at
    value_to = arena_values + (target * arena_value_row + head * arena_value_head)[:, None] + at
    tl.store(value_to, tl.load(value, mask=mask), mask=mask)
