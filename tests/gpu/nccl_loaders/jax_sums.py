"""Sums, gathers and permutes arrays over two GPUs with JAX: in one process, or in two processes that JAX connects."""

import functools
import os
import sys

import jax
import numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

rank, ranks = int(os.environ["RANK"]), int(os.environ["RANKS"])
if ranks > 1:
    jax.distributed.initialize("127.0.0.1:" + os.environ["PORT"], ranks, rank, local_device_ids=[rank])
devices = jax.devices()
assert len(devices) == 2, devices
mesh = Mesh(numpy.array(devices), ("gpu",))
values = numpy.arange(2 * 1024, dtype=numpy.float32)
sharded = jax.make_array_from_callback(values.shape, NamedSharding(mesh, PartitionSpec("gpu")), lambda index: values[index])


def over_gpus(function):
    return jax.jit(functools.partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("gpu"), out_specs=PartitionSpec("gpu"))(function))


low, high = values[:1024], values[1024:]
for name, function, expected in (
        ("psum", lambda mine: mine + jax.lax.psum(mine, "gpu"), [low + low + high, high + low + high]),
        ("all_gather", lambda mine: mine + jax.lax.all_gather(mine, "gpu")[1], [low + high, high + high]),
        ("ppermute", lambda mine: mine + 2 * jax.lax.ppermute(mine, "gpu", [(0, 1), (1, 0)]), [low + 2 * high, high + 2 * low])):
    compiled = over_gpus(function)
    for _ in range(3):
        result = compiled(sharded)
    for shard in result.addressable_shards:
        found = numpy.asarray(shard.data)
        assert numpy.array_equal(found, numpy.concatenate(expected)[shard.index]), (name, shard.index)
        line = f"sum {name} {shard.index[0].start or 0} {float(found.sum())}\n"
        sys.stdout.write(line)  # in one piece, because ranks share the output
        sys.stdout.flush()
