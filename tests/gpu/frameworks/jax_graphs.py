"""JAX with its loops and conditions in CUDA graphs, as conditional nodes."""

import os

os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_gpu_graph_min_graph_size=1"
                           " --xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUDNN,CONDITIONAL,WHILE")

import lines  # noqa: E402

jax = lines.need("jax")
lines.need_cuda_of_jax()
import jax.numpy as jnp  # noqa: E402


@jax.jit
def loops(x, count):
    x = jax.lax.fori_loop(0, 20, lambda i, v: jnp.sin(v) @ v * 0.1 + i, x)
    x, count = jax.lax.while_loop(lambda s: s[1] > 0, lambda s: (jnp.cos(s[0]) + 1, s[1] - 1), (x, count))
    return jax.lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)


@lines.case
def loops_and_a_condition(say):
    x = jnp.ones((64, 64))
    for count in (3, 8, 0):
        for _ in range(4):  # JAX makes graphs only after some calls
            out = loops(x, jnp.int32(count))
        say(f"{count} rounds", lines.hash_of(jax.device_get(out)))


@lines.case
def a_switch(say):
    choose = jax.jit(lambda i, v: jax.lax.switch(i, [lambda v: v + 1, lambda v: v * 3, lambda v: v - 7], v))
    v = jnp.arange(1000, dtype=jnp.int32)
    for i in (0, 1, 2, 1):
        for _ in range(3):
            out = choose(jnp.int32(i), v)
        say(f"branch {i}", lines.hash_of(jax.device_get(out)))


if __name__ == "__main__":
    lines.run()
