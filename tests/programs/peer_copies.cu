// Copies between devices, every byte checked: all sizes and alignments, plain, 2D, 3D and from
// array to array, by every call there is; in order with kernels of both devices, both ways at once,
// many to one and one to many; events that hold back another device's stream; graphs. With one
// device the copies go from it to itself. The output does not depend on the number.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "patterned_memory.h"
#include "program.h"

namespace {

int devices = 0;
std::vector<cudaStream_t> streams;

void synchronize_all() {
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaDeviceSynchronize());
  }
}

// ---- sizes and alignments ----------------------------------------------------------------------

void sizes(int from, int to) {
  constexpr uint64_t kSizes[] = {1,
                                 2,
                                 3,
                                 4,
                                 7,
                                 64,
                                 65,
                                 1000,
                                 4095,
                                 4096,
                                 4097,
                                 65535,
                                 65536,
                                 65537,
                                 200000,
                                 200001,
                                 1u << 20,
                                 (1u << 20) + 13,
                                 (5u << 20) + 3,
                                 (17u << 20) + 1};
  constexpr uint64_t kOffsets[][2] = {{0, 0}, {1, 0}, {0, 3}, {5, 2}, {256, 13}};
  constexpr uint64_t kRoom = (18u << 20);
  Memory source(from, kRoom), destination(to, kRoom);
  source.fill_with(from + 1, nullptr);
  CUDA(cudaDeviceSynchronize());
  int turn = 0;
  for (const uint64_t n : kSizes) {
    for (const auto& [out, in] : kOffsets) {
      if (n > (1u << 20) + 13 && out > 1) continue;
      const uint64_t shown = std::min<uint64_t>(kRoom, n + in + 64);
      CUDA(cudaSetDevice(to));
      CUDA(cudaMemset(destination.data, 0xee, shown));
      CUDA(cudaDeviceSynchronize());
      CUDA(cudaSetDevice(turn % 2 ? from : to));
      unsigned char* target = destination.data + in;
      const unsigned char* origin = source.data + out;
      switch (turn++ % 4) {
        case 0:
          CUDA(cudaMemcpyPeer(target, to, origin, from, n));
          break;
        case 1:
          CUDA(cudaMemcpyPeerAsync(target, to, origin, from, n, streams[from]));
          CUDA(cudaStreamSynchronize(streams[from]));
          break;
        case 2:
          CUDA(cudaMemcpy(target, origin, n, cudaMemcpyDefault));
          break;
        default:
          CUDA(cudaMemcpyAsync(target, origin, n, cudaMemcpyDeviceToDevice, streams[to]));
          CUDA(cudaStreamSynchronize(streams[to]));
      }
      CUDA(cudaSetDevice(to));
      std::vector<unsigned char> values(shown);
      CUDA(cudaMemcpy(values.data(), destination.data, shown, cudaMemcpyDeviceToHost));
      CHECK(untouched(values, 0, in));
      CHECK(holds(values, in, n, out, from + 1));
      CHECK(untouched(values, in + n, shown));
    }
  }
}

// ---- shapes ------------------------------------------------------------------------------------

void shapes(int from, int to) {
  constexpr uint64_t kWidth = 333, kHeight = 41, kDepth = 7;
  constexpr uint64_t kFromPitch = 512, kToPitch = 400, kFromRows = 43, kToRows = 41;
  Memory source(from, kFromPitch * kFromRows * kDepth);
  Memory destination(to, kToPitch * kToRows * kDepth);
  source.fill_with(from + 9, nullptr);
  CUDA(cudaDeviceSynchronize());
  const auto check = [&](uint64_t depth) {
    const std::vector<unsigned char> values = destination.values();
    for (uint64_t z = 0; z < depth; ++z) {
      for (uint64_t y = 0; y < kHeight; ++y) {
        const uint64_t row = (z * kToRows + y) * kToPitch;
        CHECK(holds(values, row, kWidth, (z * kFromRows + y) * kFromPitch, from + 9));
        CHECK(untouched(values, row + kWidth, row + kToPitch));
      }
    }
    CHECK(untouched(values, depth * kToRows * kToPitch, values.size()));
    destination.set(0xee);
  };
  destination.set(0xee);
  CUDA(cudaMemcpy2D(destination.data, kToPitch, source.data, kFromPitch, kWidth, kHeight,
                    cudaMemcpyDefault));
  check(1);
  CUDA(cudaMemcpy2DAsync(destination.data, kToPitch, source.data, kFromPitch, kWidth, kHeight,
                         cudaMemcpyDeviceToDevice, streams[to]));
  CUDA(cudaStreamSynchronize(streams[to]));
  check(1);
  cudaMemcpy3DPeerParms box{};
  box.srcPtr = make_cudaPitchedPtr(source.data, kFromPitch, kWidth, kFromRows);
  box.dstPtr = make_cudaPitchedPtr(destination.data, kToPitch, kWidth, kToRows);
  box.srcDevice = from;
  box.dstDevice = to;
  box.extent = make_cudaExtent(kWidth, kHeight, kDepth);
  CUDA(cudaMemcpy3DPeer(&box));
  synchronize_all();
  check(kDepth);
  CUDA(cudaMemcpy3DPeerAsync(&box, streams[from]));
  CUDA(cudaStreamSynchronize(streams[from]));
  check(kDepth);
}

void arrays(int from, int to) {
  constexpr size_t kWidth = 100, kHeight = 17;
  std::vector<unsigned char> given(kWidth * kHeight), got(given.size());
  for (size_t i = 0; i < given.size(); ++i) given[i] = pattern(i, 77);
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned char>();
  cudaArray_t source, destination;
  CUDA(cudaSetDevice(from));
  CUDA(cudaMallocArray(&source, &format, kWidth, kHeight));
  CUDA(cudaMemcpy2DToArray(source, 0, 0, given.data(), kWidth, kWidth, kHeight,
                           cudaMemcpyHostToDevice));
  CUDA(cudaSetDevice(to));
  CUDA(cudaMallocArray(&destination, &format, kWidth, kHeight));
  cudaMemcpy3DPeerParms box{};
  box.srcArray = source;
  box.dstArray = destination;
  box.srcDevice = from;
  box.dstDevice = to;
  box.extent = make_cudaExtent(kWidth, kHeight, 1);
  CUDA(cudaMemcpy3DPeer(&box));
  synchronize_all();
  CUDA(cudaSetDevice(to));
  CUDA(cudaMemcpy2DFromArray(got.data(), kWidth, destination, 0, 0, kWidth, kHeight,
                             cudaMemcpyDeviceToHost));
  CHECK(got == given);
  CUDA(cudaFreeArray(destination));
  CUDA(cudaSetDevice(from));
  CUDA(cudaFreeArray(source));
}

// ---- order -------------------------------------------------------------------------------------

// What is in the stream before the copy is done before, what comes after comes after, on whichever
// device the stream is.
void order(int from, int to) {
  constexpr uint64_t kBytes = (3u << 20) + 5;
  Memory source(from, kBytes), destination(to, kBytes);
  for (unsigned round = 0; round < 5; ++round) {
    source.set(0);
    destination.set(0);
    source.fill_with(round, streams[from]);
    CUDA(cudaMemcpyPeerAsync(destination.data, to, source.data, from, kBytes, streams[from]));
    source.fill_with(99, streams[from]);  // comes too late to be copied
    CUDA(cudaStreamSynchronize(streams[from]));
    CHECK(holds(destination.values(), 0, kBytes, 0, round));

    source.fill_with(round + 100, nullptr);
    CUDA(cudaDeviceSynchronize());
    destination.fill_with(98, streams[to]);  // is overwritten
    CUDA(cudaMemcpyPeerAsync(destination.data, to, source.data, from, kBytes, streams[to]));
    CUDA(cudaSetDevice(to));
    add<<<16, 128, 0, streams[to]>>>(destination.data, kBytes, 3);
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(streams[to]));
    CHECK(holds(destination.values(), 0, kBytes, 0, round + 100, 3));
  }

  // The default streams of both devices, and no synchronisation but the copy's own.
  source.fill_with(7, nullptr);
  destination.fill_with(8, nullptr);
  CUDA(cudaMemcpyPeer(destination.data, to, source.data, from, kBytes));
  CUDA(cudaSetDevice(to));
  add<<<16, 128>>>(destination.data, kBytes, 1);
  CHECK(holds(destination.values(), 0, kBytes, 0, 7, 1));

  // In a stream of a device that has neither side.
  const int third = (to + 1) % devices;
  Memory marker(third, 64);
  source.fill_with(11, nullptr);
  CUDA(cudaDeviceSynchronize());
  marker.fill_with(1, streams[third]);
  CUDA(cudaMemcpyPeerAsync(destination.data, to, source.data, from, kBytes, streams[third]));
  CUDA(cudaMemcpyPeerAsync(source.data, from, marker.data, third, 64, streams[third]));
  CUDA(cudaStreamSynchronize(streams[third]));
  CHECK(holds(destination.values(), 0, kBytes, 0, 11));
  CHECK(holds(source.values(), 0, 64, 0, 1));
}

// ---- beside kernels ----------------------------------------------------------------------------

// What `later` gets from now on waits for what `earlier`, a stream of `device`, has by now.
void let_wait(cudaStream_t later, cudaStream_t earlier, int device) {
  cudaEvent_t event;
  CUDA(cudaSetDevice(device));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaEventRecord(event, earlier));
  CUDA(cudaStreamWaitEvent(later, event, 0));
  CUDA(cudaEventDestroy(event));
}

// Copies of odd sizes and alignments while kernels run on both devices: in streams of their own all
// the time, and in the copy's right before and right behind it, on the same memory.
void beside_kernels(int from, int to) {
  constexpr uint64_t kSizes[] = {1, 65537, 200001, (3u << 20) + 13};
  constexpr uint64_t kOffsets[][2] = {{0, 0}, {7, 0}, {0, 5}, {3, 258}};
  constexpr uint64_t kRoom = 4u << 20, kScratch = 100001;
  Memory source(from, kRoom), destination(to, kRoom);
  Memory other_memory[] = {{from, kScratch}, {to, kScratch}};
  cudaStream_t other_stream[2];
  for (int side = 0; side < 2; ++side) {
    CUDA(cudaSetDevice(other_memory[side].device));
    CUDA(cudaStreamCreateWithFlags(&other_stream[side], cudaStreamNonBlocking));
    other_memory[side].fill_with(91 + side, other_stream[side]);
  }
  unsigned char kernels = 0;
  const auto run_kernels = [&] {
    for (int side = 0; side < 2; ++side) {
      CUDA(cudaSetDevice(other_memory[side].device));
      add<<<8, 128, 0, other_stream[side]>>>(other_memory[side].data, kScratch, 1);
      CUDA(cudaGetLastError());
    }
    ++kernels;
  };
  unsigned seed = 100;
  for (const uint64_t n : kSizes) {
    for (const auto& [out, in] : kOffsets) {
      ++seed;
      source.fill_with(seed, streams[from]);
      CUDA(cudaSetDevice(to));
      CUDA(cudaMemsetAsync(destination.data, 0xee, kRoom, streams[to]));
      run_kernels();
      let_wait(streams[to], streams[from], from);
      let_wait(streams[from], streams[to], to);
      CUDA(cudaMemcpyPeerAsync(destination.data + in, to, source.data + out, from, n,
                               streams[seed % 2 ? from : to]));
      run_kernels();
      if (seed % 2) {
        let_wait(streams[to], streams[from], from);
      } else {
        let_wait(streams[from], streams[to], to);
      }
      source.fill_with(99, streams[from]);  // comes too late to be copied
      CUDA(cudaSetDevice(to));
      add<<<8, 128, 0, streams[to]>>>(destination.data + in, n, 9);
      CUDA(cudaGetLastError());
      CUDA(cudaStreamSynchronize(streams[to]));
      const std::vector<unsigned char> values = destination.values();
      CHECK(untouched(values, 0, in));
      CHECK(holds(values, in, n, out, seed, 9));
      CHECK(untouched(values, in + n, kRoom));
    }
  }
  for (int side = 0; side < 2; ++side) {
    CUDA(cudaSetDevice(other_memory[side].device));
    CUDA(cudaStreamSynchronize(other_stream[side]));
    CHECK(holds(other_memory[side].values(), 0, kScratch, 0, 91 + side, kernels));
    CUDA(cudaStreamDestroy(other_stream[side]));
  }
}

// ---- behind the host ---------------------------------------------------------------------------

// Asynchronous copies do not hold the host, also behind work that has not begun.
struct Door {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
};
void CUDART_CB pass(void* argument) {
  auto* door = static_cast<Door*>(argument);
  std::unique_lock lock(door->mutex);
  door->changed.wait(lock, [&] { return door->open; });
}

void host_goes_on(int from, int to) {
  constexpr uint64_t kBytes = 1u << 20;
  Memory source(from, kBytes), destination(to, kBytes);
  for (const int side : {from, to}) {
    Door door;
    source.fill_with(21 + side, nullptr);
    CUDA(cudaDeviceSynchronize());
    destination.set(0);
    CUDA(cudaSetDevice(side));
    CUDA(cudaLaunchHostFunc(streams[side], &pass, &door));
    CUDA(cudaMemcpyPeerAsync(destination.data, to, source.data, from, kBytes, streams[side]));
    EXPECT(cudaErrorNotReady, cudaStreamQuery(streams[side]));
    {
      std::lock_guard lock(door.mutex);
      door.open = true;
    }
    door.changed.notify_all();
    CUDA(cudaStreamSynchronize(streams[side]));
    CHECK(holds(destination.values(), 0, kBytes, 0, 21 + side));
  }
}

// More work behind a copy than queues may hold, and memory that is asked for meanwhile.
void long_queue(int from, int to) {
  constexpr uint64_t kBytes = 4096;
  constexpr int kLaunches = 600;
  Memory source(from, kBytes), destination(to, kBytes);
  for (const int side : {from, to}) {
    Door door;
    Memory& here = side == from ? source : destination;
    source.fill_with(25 + side, nullptr);
    CUDA(cudaDeviceSynchronize());
    destination.set(0);
    CUDA(cudaSetDevice(side));
    CUDA(cudaLaunchHostFunc(streams[side], &pass, &door));
    CUDA(cudaMemcpyPeerAsync(destination.data, to, source.data, from, kBytes, streams[side]));
    for (int i = 0; i < kLaunches; ++i) add<<<1, 128, 0, streams[side]>>>(here.data, kBytes, 1);
    CUDA(cudaGetLastError());
    {
      std::lock_guard lock(door.mutex);
      door.open = true;
    }
    door.changed.notify_all();
    Memory meanwhile(side, kBytes);
    CUDA(cudaStreamSynchronize(streams[side]));
    CHECK(holds(here.values(), 0, kBytes, 0, 25 + side, static_cast<unsigned char>(kLaunches)));
  }
}

// ---- several at once ---------------------------------------------------------------------------

void both_ways(int one, int other) {
  constexpr uint64_t kBytes = (2u << 20) + 7;
  constexpr int kRounds = 6;
  Memory a(one, kBytes), b(other, kBytes), from_a(other, kBytes), from_b(one, kBytes);
  a.fill_with(31, nullptr);
  b.fill_with(32, nullptr);
  synchronize_all();
  for (int round = 0; round < kRounds; ++round) {
    CUDA(cudaMemcpyPeerAsync(from_a.data, other, a.data, one, kBytes, streams[one]));
    CUDA(cudaMemcpyPeerAsync(from_b.data, one, b.data, other, kBytes, streams[other]));
  }
  synchronize_all();
  CHECK(holds(from_a.values(), 0, kBytes, 0, 31));
  CHECK(holds(from_b.values(), 0, kBytes, 0, 32));
}

void all_to_one_and_back() {
  constexpr uint64_t kBytes = (1u << 20) + 1;
  std::vector<std::unique_ptr<Memory>> parts;
  Memory whole(0, kBytes * devices);
  for (int d = 0; d < devices; ++d) {
    parts.push_back(std::make_unique<Memory>(d, kBytes));
    parts[d]->fill_with(41 + d, streams[d]);
    CUDA(cudaMemcpyPeerAsync(whole.data + d * kBytes, 0, parts[d]->data, d, kBytes, streams[d]));
  }
  synchronize_all();
  std::vector<unsigned char> values = whole.values();
  for (int d = 0; d < devices; ++d) CHECK(holds(values, d * kBytes, kBytes, 0, 41 + d));
  for (int d = 0; d < devices; ++d) {
    const int left = (d + devices - 1) % devices;
    CUDA(cudaMemcpyPeerAsync(parts[d]->data, d, whole.data + left * kBytes, 0, kBytes, streams[0]));
  }
  synchronize_all();
  for (int d = 0; d < devices; ++d) {
    CHECK(holds(parts[d]->values(), 0, kBytes, 0, 41 + (d + devices - 1) % devices));
  }
}

// ---- events ------------------------------------------------------------------------------------

// A token goes round all devices, held in order by events alone.
void relay_race() {
  constexpr uint64_t kBytes = 4099;
  constexpr int kLaps = 12;
  std::vector<std::unique_ptr<Memory>> stations;
  std::vector<cudaEvent_t> arrived(devices);
  for (int d = 0; d < devices; ++d) {
    stations.push_back(std::make_unique<Memory>(d, kBytes));
    stations[d]->set(0);
    CUDA(cudaEventCreateWithFlags(&arrived[d], cudaEventDisableTiming));
  }
  stations[0]->fill_with(51, streams[0]);
  CUDA(cudaEventRecord(arrived[0], streams[0]));
  for (int step = 0; step < kLaps * devices; ++step) {
    const int from = step % devices, to = (step + 1) % devices;
    CUDA(cudaSetDevice(to));
    CUDA(cudaStreamWaitEvent(streams[to], arrived[from], 0));
    CUDA(cudaMemcpyPeerAsync(stations[to]->data, to, stations[from]->data, from, kBytes,
                             streams[to]));
    add<<<4, 128, 0, streams[to]>>>(stations[to]->data, kBytes, 1);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(arrived[to], streams[to]));
  }
  synchronize_all();
  CHECK(
      holds(stations[0]->values(), 0, kBytes, 0, 51, static_cast<unsigned char>(kLaps * devices)));
  for (int d = 0; d < devices; ++d) CUDA(cudaEventDestroy(arrived[d]));
}

// ---- graphs ------------------------------------------------------------------------------------

void graphs(int from, int to) {
  constexpr uint64_t kBytes = 100003;
  Memory source(from, kBytes), destination(to, kBytes);
  CUDA(cudaSetDevice(from));
  cudaGraph_t graph;
  cudaGraphExec_t launchable;
  CUDA(cudaStreamBeginCapture(streams[from], cudaStreamCaptureModeThreadLocal));
  add<<<8, 128, 0, streams[from]>>>(source.data, kBytes, 1);
  const cudaError_t captured =
      cudaMemcpyPeerAsync(destination.data, to, source.data, from, kBytes, streams[from]);
  if (captured == cudaErrorStreamCaptureUnsupported) {
    // A driver's own copy between devices without peer access is no node of a graph.
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams[from], &graph));
    cudaGetLastError();
    return;
  }
  CHECK(captured == cudaSuccess);
  add<<<8, 128, 0, streams[from]>>>(source.data, kBytes, 1);
  CUDA(cudaStreamEndCapture(streams[from], &graph));
  CUDA(cudaGraphInstantiate(&launchable, graph, 0));
  source.fill_with(61, streams[from]);
  for (int launch = 0; launch < 4; ++launch) {
    CUDA(cudaSetDevice(from));
    CUDA(cudaGraphLaunch(launchable, streams[from]));
    CUDA(cudaStreamSynchronize(streams[from]));
    CHECK(
        holds(destination.values(), 0, kBytes, 0, 61, static_cast<unsigned char>(2 * launch + 1)));
  }
  CUDA(cudaSetDevice(from));
  for (int launch = 0; launch < 4; ++launch) CUDA(cudaGraphLaunch(launchable, streams[from]));
  CUDA(cudaStreamSynchronize(streams[from]));
  CHECK(holds(destination.values(), 0, kBytes, 0, 61, 15));
  CUDA(cudaGraphExecDestroy(launchable));
  CUDA(cudaGraphDestroy(graph));
}

// The same by explicit nodes, whose copies are changed in the graph and in the executable, and
// which read back as they were given, in a clone as well.
void graphs_by_hand(int from, int to) {
  constexpr uint64_t kBytes = 100003, kWidth = 333, kHeight = 41, kPitch = 512;
  Memory first(from, kBytes), second(from, kBytes), destination(to, kBytes);
  first.fill_with(63, nullptr);
  second.fill_with(64, nullptr);
  CUDA(cudaDeviceSynchronize());
  destination.set(0xee);
  CUDA(cudaSetDevice(from));
  cudaGraph_t graph, clone;
  cudaGraphNode_t before, copy, box_node, in_clone;
  CUDA(cudaGraphCreate(&graph, 0));
  unsigned char* bytes = first.data;
  uint64_t n = kBytes;
  unsigned char value = 1;
  void* arguments[] = {&bytes, &n, &value};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(&add);
  kernel.gridDim = dim3(8);
  kernel.blockDim = dim3(128);
  kernel.kernelParams = arguments;
  CUDA(cudaGraphAddKernelNode(&before, graph, nullptr, 0, &kernel));
  CUDA(cudaGraphAddMemcpyNode1D(&copy, graph, &before, 1, destination.data + 3, first.data + 1,
                                50000, cudaMemcpyDefault));
  cudaMemcpy3DParms box{};
  box.srcPtr = make_cudaPitchedPtr(second.data, kPitch, kWidth, kHeight);
  box.dstPtr = make_cudaPitchedPtr(destination.data + 60000, kWidth, kWidth, kHeight);
  box.extent = make_cudaExtent(kWidth, kHeight, 1);
  box.kind = cudaMemcpyDefault;
  CUDA(cudaGraphAddMemcpyNode(&box_node, graph, &copy, 1, &box));
  cudaMemcpy3DParms read{};
  CUDA(cudaGraphMemcpyNodeGetParams(copy, &read));
  CHECK(read.srcPtr.ptr == first.data + 1 && read.dstPtr.ptr == destination.data + 3);
  CHECK(read.extent.width == 50000);
  CUDA(cudaGraphClone(&clone, graph));
  CUDA(cudaGraphNodeFindInClone(&in_clone, copy, clone));
  CUDA(cudaGraphMemcpyNodeGetParams(in_clone, &read));
  CHECK(read.srcPtr.ptr == first.data + 1 && read.extent.width == 50000);

  const auto launch = [&](cudaGraphExec_t executable) {
    destination.set(0xee);
    CUDA(cudaSetDevice(from));
    CUDA(cudaGraphLaunch(executable, streams[from]));
    CUDA(cudaStreamSynchronize(streams[from]));
  };
  const auto check = [&](uint64_t at, uint64_t bytes, uint64_t first_byte, unsigned seed,
                         unsigned char plus) {
    const std::vector<unsigned char> values = destination.values();
    CHECK(untouched(values, 0, at));
    CHECK(holds(values, at, bytes, first_byte, seed, plus));
    CHECK(untouched(values, at + bytes, 60000));
    for (uint64_t y = 0; y < kHeight; ++y) {
      CHECK(holds(values, 60000 + y * kWidth, kWidth, y * kPitch, 64));
    }
    CHECK(untouched(values, 60000 + kHeight * kWidth, kBytes));
    CUDA(cudaSetDevice(from));
  };
  cudaGraphExec_t executable, of_clone;
  CUDA(cudaSetDevice(from));
  CUDA(cudaGraphInstantiate(&of_clone, clone, 0));
  CUDA(cudaGraphMemcpyNodeSetParams1D(copy, destination.data, second.data + 7, 40001,
                                      cudaMemcpyDefault));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  launch(of_clone);
  check(3, 50000, 1, 63, 1);
  launch(executable);
  check(0, 40001, 7, 64, 0);
  CUDA(cudaGraphExecMemcpyNodeSetParams1D(executable, copy, destination.data + 11, first.data,
                                          12345, cudaMemcpyDefault));
  launch(executable);
  check(11, 12345, 0, 63, 3);
  launch(of_clone);
  check(3, 50000, 1, 63, 4);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphExecDestroy(of_clone));
  CUDA(cudaGraphDestroy(clone));
  CUDA(cudaGraphDestroy(graph));
}

// ---- memory that goes ---------------------------------------------------------------------------

void memory_comes_and_goes(int from, int to) {
  constexpr uint64_t kBytes = (1u << 20) + 9;
  for (unsigned round = 0; round < 4; ++round) {
    // Freed by a device that does not know of the copy, which has perhaps not begun.
    auto source = std::make_unique<Memory>(from, kBytes);
    auto destination = std::make_unique<Memory>(to, kBytes);
    source->fill_with(71 + round, streams[from]);
    CUDA(cudaMemcpyPeerAsync(destination->data, to, source->data, from, kBytes, streams[from]));
    CUDA(cudaStreamSynchronize(streams[from]));
    CHECK(holds(destination->values(), 0, kBytes, 0, 71 + round));
    CUDA(cudaMemcpyPeerAsync(destination->data, to, source->data, from, kBytes, streams[from]));
    destination.reset();
    source.reset();

    // In stream order.
    unsigned char *first, *second;
    CUDA(cudaSetDevice(from));
    CUDA(cudaMallocAsync(&first, kBytes, streams[from]));
    fill<<<16, 128, 0, streams[from]>>>(first, kBytes, 81 + round);
    CUDA(cudaStreamSynchronize(streams[from]));
    CUDA(cudaSetDevice(to));
    CUDA(cudaMallocAsync(&second, kBytes, streams[to]));
    CUDA(cudaMemcpyPeerAsync(second, to, first, from, kBytes, streams[to]));
    std::vector<unsigned char> values(kBytes);
    CUDA(cudaMemcpyAsync(values.data(), second, kBytes, cudaMemcpyDeviceToHost, streams[to]));
    CUDA(cudaFreeAsync(second, streams[to]));
    CUDA(cudaStreamSynchronize(streams[to]));
    CHECK(holds(values, 0, kBytes, 0, 81 + round));
    CUDA(cudaSetDevice(from));
    CUDA(cudaFreeAsync(first, streams[from]));
  }
}

void all_pairs(const char* what, void (*test)(int from, int to)) {
  for (int from = 0; from < devices; ++from) {
    test(from, (from + 1) % devices);
  }
  std::printf("%s hold\n", what);
}

}  // namespace

int main() {
  CUDA(cudaGetDeviceCount(&devices));
  streams.resize(devices);
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
  }
  all_pairs("sizes and alignments", &sizes);
  all_pairs("shapes", &shapes);
  all_pairs("arrays", &arrays);
  all_pairs("orders", &order);
  all_pairs("copies beside kernels", &beside_kernels);
  all_pairs("copies behind the host", &host_goes_on);
  all_pairs("long queues behind a copy", &long_queue);
  all_pairs("copies both ways", &both_ways);
  all_to_one_and_back();
  relay_race();
  std::printf("copies among all devices hold\n");
  all_pairs("graphs", &graphs);
  all_pairs("graphs by hand", &graphs_by_hand);
  all_pairs("memory that comes and goes", &memory_comes_and_goes);
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaStreamDestroy(streams[d]));
  }
}
