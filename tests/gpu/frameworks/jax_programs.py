"""JAX: jit, grad, scan, vmap, pmap with one device, the CUDA libraries that it uses, callbacks, buffers."""

import os

# Must be set before JAX is imported. With it, each run uses the same kernels, not the fastest ones.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import lines  # noqa: E402

jax = lines.need("jax")
lines.need_cuda_of_jax()
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402


def hash_of(*values):
    return lines.hash_of(*[numpy.asarray(value) for value in jax.tree.leaves(values)])


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def integers(seed, *shape):
    return jnp.asarray(numpy.random.default_rng(seed).integers(-3, 4, shape).astype(numpy.float32))


@lines.case
def devices(say):
    found = jax.devices()
    say("number", len(found))
    say("platform", found[0].platform)
    say("kind", found[0].device_kind)


@lines.case
def jit(say):
    @jax.jit
    def function(x, y):
        return jnp.tanh(x @ y).sum(axis=0) * 2 + jnp.sin(x).mean()

    say("out", hash_of(function(normal(0, 64, 64), normal(1, 64, 64))))
    say("exact", hash_of(jax.jit(jnp.matmul)(integers(0, 200, 100), integers(1, 100, 50))))
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int32, jnp.complex64):
        x = integers(2, 64, 64).astype(dtype)
        say(str(numpy.dtype(dtype)), hash_of((x @ x).astype(jnp.complex64)))


@lines.case
def grad(say):
    def loss(parameters, x):
        for weight in parameters:
            x = jnp.tanh(x @ weight)
        return (x ** 2).mean()

    parameters = [normal(i, 32, 32) * 0.2 for i in range(3)]
    value, gradients = jax.jit(jax.value_and_grad(loss))(parameters, normal(9, 16, 32))
    say("value", hash_of(value))
    say("gradients", hash_of(gradients))
    say("hessian", hash_of(jax.hessian(lambda x: jnp.sin(x).prod())(jnp.arange(1.0, 6.0))))


@lines.case
def scan(say):
    def step(carry, x):
        carry = carry * 0.9 + x
        return carry, carry.sum()

    last, sums = jax.lax.scan(step, jnp.zeros(128), normal(3, 500, 128))
    say("scan", hash_of(last, sums))
    say("while", hash_of(jax.lax.while_loop(lambda s: s[0] < 100, lambda s: (s[0] + 1, s[1] * 1.01),
                                            (0, jnp.ones(50)))))
    say("cond", hash_of(jax.jit(lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x))(normal(4, 64))))


@lines.case
def pmap_of_one(say):
    out = jax.pmap(lambda x: jax.lax.psum(x * 2, "i"), axis_name="i")(normal(5, 1, 64))
    say("out", hash_of(out))
    say("shape", out.shape)


@lines.case
def sharded_over_one(say):
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()[:1]), ("x",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.device_put(normal(6, 64, 8), where)
    say("out", hash_of(jax.jit(lambda x: (x * 3).sum(0))(x)))


@lines.case
def vmap(say):
    out = jax.vmap(lambda a, b: jnp.dot(a, b))(integers(7, 32, 40), integers(8, 32, 40))
    say("out", hash_of(out))


@lines.case
def random(say):
    key = jax.random.key(42)
    for i, key in enumerate(jax.random.split(key, 3)):
        say(f"key {i}", hash_of(jax.random.uniform(key, (1000,)), jax.random.permutation(key, 100)))


@lines.case
def libraries(say):
    x = normal(9, 40, 40)
    spd = x @ x.T + 40 * jnp.eye(40)
    for name, function in {
            "fft": lambda: jnp.fft.fft2(x), "cholesky": lambda: jnp.linalg.cholesky(spd),
            "qr": lambda: jnp.linalg.qr(x), "eigh": lambda: jnp.linalg.eigh(spd)[0],
            "svd": lambda: jnp.linalg.svd(x, compute_uv=False), "solve": lambda: jnp.linalg.solve(spd, x),
            "sort": lambda: jnp.sort(normal(10, 10_000)), "argsort": lambda: jnp.argsort(normal(11, 3000)),
            "top k": lambda: jax.lax.top_k(normal(12, 5000), 20),
            "cumsum": lambda: jnp.cumsum(integers(13, 4000)),
            "convolution": lambda: jax.lax.conv(integers(14, 2, 4, 16, 16), integers(15, 8, 4, 3, 3),
                                                (1, 1), "SAME")}.items():
        try:
            say(name, hash_of(function()))
        except Exception as error:
            say(name, f"raises {type(error).__name__}")
            print(error, flush=True)


@lines.case
def training(say):
    @jax.jit
    def step(parameters, x, y):
        def loss(parameters):
            (w1, b1), (w2, b2) = parameters
            out = jax.nn.gelu(x @ w1 + b1) @ w2 + b2
            return jnp.mean((out - y) ** 2)
        value, gradients = jax.value_and_grad(loss)(parameters)
        return jax.tree.map(lambda p, g: p - 0.05 * g, parameters, gradients), value

    parameters = [(normal(1, 16, 64) * 0.1, jnp.zeros(64)), (normal(2, 64, 1) * 0.1, jnp.zeros(1))]
    losses = []
    for i in range(200):
        x = normal(100 + i, 32, 16)
        parameters, value = step(parameters, x, jnp.sin(x.sum(1, keepdims=True)))
        losses.append(value)
    say("losses", hash_of(jnp.stack(losses)))
    say("weights", hash_of(parameters))
    say("last", f"{float(losses[-1]):.6f}")


@lines.case
def callbacks_and_donation(say):
    out = jax.jit(lambda x: jax.pure_callback(lambda v: numpy.asarray(v) * 2,
                                              jax.ShapeDtypeStruct((64,), jnp.float32), x) + 1)(normal(30, 64))
    say("callback", hash_of(out))
    x = jnp.arange(1000.0)
    say("donated", hash_of(jax.jit(lambda x: x + 1, donate_argnums=0)(x)))
    say("gone", x.is_deleted())
    say("dlpack", hash_of(jnp.from_dlpack(jnp.arange(10.0))))


@lines.case
def transfers(say):
    for size in (1, 1000, 3_000_001):
        host = numpy.arange(size, dtype=numpy.float32)
        there = jax.device_put(host)
        say(f"{size} floats", bool((numpy.asarray(there + 1) == host + 1).all()))
    stats = jax.devices()[0].memory_stats()
    say("memory statistics", sorted(stats)[:3] if stats else "none")


if __name__ == "__main__":
    lines.run()
