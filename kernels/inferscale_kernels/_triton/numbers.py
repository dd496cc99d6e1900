"""Numbers on a device: bf16, fp16 and fp8 to fp32 and back, with the roundings that the kernels promise."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(x):
    """To fp32, exactly. bf16 by its bits: the interpreter loses subnormals otherwise."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def narrow(x, DTYPE: tl.constexpr, BITWISE: tl.constexpr):
    """From fp32 to the model dtype, to nearest, ties to even. The interpreter truncates to bf16: ``BITWISE`` "all"."""
    if BITWISE == "all" and DTYPE == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def encode_fp8(x, FORMAT: tl.constexpr, BITWISE: tl.constexpr):
    """fp32 to the bits of fp8: to nearest even, saturating at the largest finite value, NaN stays NaN.

    Targets without the instruction (before sm_89) and the interpreter round by the bits, ``BITWISE`` "fp8" and "all".
    """
    if BITWISE is None:
        if FORMAT == "e4m3":
            return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        # Unlike e4m3, e5m2 has an infinity, which a plain conversion gives.
        clamped = tl.where(x == x, tl.minimum(tl.maximum(x, -57344.0), 57344.0), x)
        return clamped.to(tl.float8e5).to(tl.uint8, bitcast=True)
    # Adding a number whose last place is the subnormals' spacing leaves their count in the low bits.
    LARGEST: tl.constexpr = 448.0 if FORMAT == "e4m3" else 57344.0
    SMALLEST_NORMAL: tl.constexpr = 2.0**-6 if FORMAT == "e4m3" else 2.0**-14
    COUNTER: tl.constexpr = 2.0**14 if FORMAT == "e4m3" else 2.0**7
    DROPPED: tl.constexpr = 20 if FORMAT == "e4m3" else 21
    BIAS: tl.constexpr = 120 if FORMAT == "e4m3" else 112
    sign = (x.to(tl.uint32, bitcast=True) >> 31) << 7
    size = tl.minimum(tl.abs(x), LARGEST)
    bits = size.to(tl.uint32, bitcast=True)
    half = (1 << (DROPPED - 1)) - 1
    normal = ((bits + half + ((bits >> DROPPED) & 1)) >> DROPPED) - (BIAS << (23 - DROPPED))
    tiny = (size + COUNTER).to(tl.uint32, bitcast=True) & 0xFF
    code = tl.where(x == x, tl.where(size < SMALLEST_NORMAL, tiny, normal), 0x7F)
    return (code | sign).to(tl.uint8)


@triton.jit
def decode_fp8(code, FORMAT: tl.constexpr):
    """The bits of fp8 to fp32, exactly: both formats are short fp16 numbers, e4m3 with another bias."""
    wide = code.to(tl.uint16)
    if FORMAT == "e5m2":
        return (wide << 8).to(tl.float16, bitcast=True).to(tl.float32)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), value)
