"""ONNX Runtime on the GPU, where its package has a CUDA back end."""

import lines

numpy = lines.need("numpy")
runtime = lines.need("onnxruntime")
onnx = lines.need("onnx")

if "CUDAExecutionProvider" not in runtime.get_available_providers():
    lines.missing("onnxruntime without CUDA")


def network():
    from onnx import TensorProto, helper, numpy_helper
    generator = numpy.random.default_rng(0)
    first = numpy_helper.from_array(generator.integers(-2, 3, (32, 64)).astype(numpy.float32), "first")
    second = numpy_helper.from_array(generator.integers(-2, 3, (64, 8)).astype(numpy.float32), "second")
    nodes = [helper.make_node("MatMul", ["x", "first"], ["hidden"]),
             helper.make_node("Relu", ["hidden"], ["active"]),
             helper.make_node("MatMul", ["active", "second"], ["y"])]
    graph = helper.make_graph(
        nodes, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])], [first, second])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def session(**options):
    made = runtime.InferenceSession(network().SerializeToString(), providers=[
        ("CUDAExecutionProvider", {"device_id": 0, "use_tf32": "0", **options})])
    if "CUDAExecutionProvider" not in made.get_providers():
        raise lines.Skip("its CUDA back end does not load")
    return made


@lines.case
def inference(say):
    made = session()
    for rows in (1, 16, 100):
        x = numpy.random.default_rng(rows).integers(-3, 4, (rows, 32)).astype(numpy.float32)
        say(f"{rows} rows", lines.hash_of(made.run(None, {"x": x})[0]))


@lines.case
def io_binding(say):
    made = session()
    x = numpy.random.default_rng(5).integers(-3, 4, (16, 32)).astype(numpy.float32)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", runtime.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    binding.bind_output("y", "cuda", 0)
    made.run_with_iobinding(binding)
    say("y", lines.hash_of(binding.copy_outputs_to_cpu()[0]))


if __name__ == "__main__":
    lines.run()
