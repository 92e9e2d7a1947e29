"""Random numbers and elementary functions with the same bits on every machine.

Uniforms are words of NumPy's Philox generator, whose raw stream is fixed. All else is made of operations that IEEE 754
rounds correctly (addition, product, quotient, square root, scaling by a power of two) in a fixed order and one at a
time, so neither a mathematics library nor a fused multiply-add has a say.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LN2 = (float.fromhex("0x1.62e42fefap-1"), float.fromhex("0x3.9ef35793c7673007e5p-41"))  # their sum is ln 2
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_EXPONENTS = 2_000.0  # beyond those of any number

# Wichura, "Algorithm AS 241: the percentage points of the normal distribution" (1988), PPND16: numerators and
# denominators near the middle, in the tails, and far out; lowest power first.
_MIDDLE = (
    (
        3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
        45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727,
    ),
    (
        1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
        21213.794301586595867, 39307.895800092710610, 28729.085735721942674, 5226.4952788528545610,
    ),
)  # fmt: skip
_TAIL = (
    (
        1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
        1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
        0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9,
    ),
)  # fmt: skip
_FAR = (
    (
        6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
        0.0265321895265761230930, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7,
    ),
    (
        1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15,
    ),
)  # fmt: skip


def uniforms(seed: int, stream: int, count: int) -> Floats:
    """Numbers strictly between 0 and 1, of 52 bits and symmetric about one half.

    Args:
        seed: of the simulation, 0 or more.
        stream: streams of one seed are independent of each other.
        count: how many.

    Examples:
        >>> [number.hex() for number in uniforms(0, 0, 2)]
        ['0x1.7a5d3204726c0p-7', '0x1.eeb1585ce5464p-3']
    """
    words = np.random.Philox(key=seed, counter=stream << 192).random_raw(count)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _polynomial(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


def log(x: Floats) -> Floats:
    """Natural logarithm of positive numbers.

    Examples:
        >>> float(log(np.array([2.0]))[0]) == math.log(2)
        True
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(low, mantissa * 2, mantissa), (exponent - low).astype(np.float64)
    ratio = (mantissa - 1) / (mantissa + 1)  # log(m) = 2 atanh(ratio), |ratio| < 0.172
    series = _polynomial(ratio * ratio, tuple(2 / (2 * i + 1) for i in range(1, 12)))
    small = 2 * ratio + ratio * (ratio * ratio) * series
    return exponent * _LN2[0] + (exponent * _LN2[1] + small)


def exp(x: Floats) -> Floats:
    """The exponential function.

    Examples:
        >>> round(float(exp(np.array([1.0]))[0]), 12)
        2.718281828459
    """
    halvings = np.rint(np.clip(x * _LOG2_E, -_EXPONENTS, _EXPONENTS))
    rest = (x - halvings * _LN2[0]) - halvings * _LN2[1]  # between -0.35 and 0.35
    series = _polynomial(rest, tuple(1 / math.factorial(i) for i in range(2, 15)))
    return np.ldexp(1 + (rest + rest * rest * series), halvings.astype(np.int32))


def power(x: Floats, exponent: float) -> Floats:
    """Positive numbers raised to a power.

    Examples:
        >>> round(float(power(np.array([2.0]), 0.5)[0]), 12)
        1.414213562373
    """
    return exp(log(x) * exponent)


def normal_quantile(p: Floats) -> Floats:
    """Where the standard normal distribution reaches each probability.

    Examples:
        >>> round(float(normal_quantile(np.array([0.975]))[0]), 6)
        1.959964
    """
    centred = p - 0.5
    tail = np.sqrt(-log(np.minimum(p, 1 - p)))
    middle = 0.425 * 0.425 - centred * centred
    near, out, far = (
        _polynomial(x, above) / _polynomial(x, below)
        for x, (above, below) in ((middle, _MIDDLE), (tail - 1.6, _TAIL), (tail - 5, _FAR))
    )
    return np.where(middle >= 0, centred * near, np.copysign(np.where(tail <= 5, out, far), centred))


def gamma(x: float) -> float:
    """The gamma function of a number of 1 or more, by Stirling's series from 12 on.

    Examples:
        >>> round(gamma(5.0), 12)
        24.0
    """
    below = 1.0
    while x < 12:
        below, x = below * x, x + 1
    series = _polynomial(np.array([1 / (x * x)]), (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360_360))
    at = np.array([x])
    return float((exp((at - 0.5) * log(at) - at + series / x) * math.sqrt(2 * math.pi) / below)[0])
