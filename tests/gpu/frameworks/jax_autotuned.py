"""JAX with its default settings: XLA measures which kernel is the fastest.

All numbers are whole, so with every kernel the results are exact.
"""

import lines

jax = lines.need("jax")
lines.need_cuda_of_jax()
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402


def integers(seed, *shape):
    return numpy.random.default_rng(seed).integers(-3, 4, shape).astype(numpy.float32)


@lines.case
def matmul(say):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        a, b = integers(20, 512, 512), integers(21, 512, 512)
        out = jax.jit(lambda a, b: jnp.maximum(jnp.matmul(a, b, preferred_element_type=jnp.float32), 0))(
            a.astype(dtype), b.astype(dtype))
        say(str(numpy.dtype(dtype)), lines.hash_of(numpy.asarray(out)))
        say(f"{numpy.dtype(dtype)} exact", bool((numpy.asarray(out) == numpy.maximum(a @ b, 0)).all()))


@lines.case
def convolution(say):
    x, kernel = integers(1, 4, 16, 20, 20), integers(2, 32, 16, 3, 3)
    out = jax.jit(lambda x, kernel: jax.lax.conv(x, kernel, (1, 1), "VALID"))(x, kernel)
    say("out", lines.hash_of(numpy.asarray(out).round()))


@lines.case
def fused_reductions(say):
    x = integers(3, 256, 1000)
    out = jax.jit(lambda x: (jnp.abs(x).sum(1), (x * 2).max(0), jnp.cumsum(x, 1)[:, -1]))(x)
    say("out", lines.hash_of(*[numpy.asarray(part) for part in out]))


if __name__ == "__main__":
    lines.run()
