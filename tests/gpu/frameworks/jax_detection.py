"""Whether JAX finds the GPU by itself: it looks for device files before it asks the driver."""

import lines

jax = lines.need("jax")
lines.need_cuda_of_jax()


@lines.case
def gpu_is_found(say):
    say("platform", jax.devices()[0].platform)


if __name__ == "__main__":
    lines.run()
