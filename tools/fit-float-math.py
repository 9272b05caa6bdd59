#!/usr/bin/env python3
"""Makes the polynomials of plugins/backends/cpu/float_math.h and prints their relative errors.

Needs mpmath. Each is the interpolation at Chebyshev nodes in 40 digits, written as coefficients of powers, whose
largest relative error over the interval is then measured with the coefficients rounded to double. The last two are used in float, whose rounding is above their error."""
import mpmath as mp

mp.mp.dps = 40


def fit(function, low, high, degree):
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [middle + half * mp.cos(mp.pi * (2 * i + 1) / (2 * (degree + 1))) for i in range(degree + 1)]
    powers = mp.matrix(degree + 1, degree + 1)
    values = mp.matrix(degree + 1, 1)
    for i, node in enumerate(nodes):
        for j in range(degree + 1):
            powers[i, j] = node**j
        values[i] = function(node)
    return [float(c) for c in mp.lu_solve(powers, values)]


def show(name, function, low, high, degree):
    coefficients = fit(function, low, high, degree)
    points = [low + (high - low) * mp.mpf(i) / 2000 for i in range(2001)]
    worst = max(abs(mp.polyval(coefficients[::-1], x) / function(x) - 1) for x in points)
    print(f"{name}: degree {degree} on [{mp.nstr(low, 6)}, {mp.nstr(high, 6)}], relative error {mp.nstr(worst, 3)}")
    for i, c in enumerate(coefficients):
        print(f"    {i:2d} {c!r}")


def tail(q):
    """With q = 0.3 u / (1 + 0.3 u): Phi(-u) e^(u^2/2) (1 + 0.3 u)."""
    u = q / (1 - q) / mp.mpf("0.3")
    return mp.exp(u * u / 2) * mp.erfc(u / mp.sqrt(2)) / 2 * (1 + mp.mpf("0.3") * u)


half_ln2 = mp.log(2) / 2 * mp.mpf("1.0001")
show("exp(r)", mp.exp, -half_ln2, half_ln2, 7)
show("exp(r), for float", mp.exp, -half_ln2, half_ln2, 6)
show("Phi(-u) e^(u^2/2) (1 + 0.3 u), q = 0.3 u / (1 + 0.3 u)", tail, mp.mpf(0), mp.mpf("4.38") / mp.mpf("5.38"), 9)
