"""95 % confidence intervals."""

import math
import random

Z = 1.959964


def wilson(right, n):
    """Of a share; takes the questions for independent."""
    p, d = right / n, 1 + Z * Z / n
    centre = (p + Z * Z / (2 * n)) / d
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / d
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(groups, repetitions=2000):
    """Of a mean: groups = [(sum, count)] of each document, which are drawn whole, since questions on
    one document are alike. Always the same draws."""
    draw = random.Random(1)
    means = []
    for _ in range(repetitions):
        sample = draw.choices(groups, k=len(groups))
        count = sum(n for _, n in sample)
        if count:
            means.append(sum(s for s, _ in sample) / count)
    means.sort()
    return means[int(0.025 * len(means))], means[int(0.975 * len(means))]
