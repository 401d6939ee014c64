// The order of copies between devices, every byte checked: with kernels of both devices in the same
// and in other streams, after host functions, in long queues, in graphs; events that hold another
// device's stream.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "peer_pairs.h"

namespace {

// ---- order -------------------------------------------------------------------------------------

// In a stream of either device, earlier work is done before the copy, and later work after it.
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

  // In the default streams of both devices, which only the copy synchronises.
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

// ---- together with kernels ---------------------------------------------------------------------

// Makes later work of `later` wait for the present work of `earlier`, a stream of `device`.
void let_wait(cudaStream_t later, cudaStream_t earlier, int device) {
  cudaEvent_t event;
  CUDA(cudaSetDevice(device));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaEventRecord(event, earlier));
  CUDA(cudaStreamWaitEvent(later, event, 0));
  CUDA(cudaEventDestroy(event));
}

// Copies of odd sizes and alignments while kernels run on both devices. In other streams, kernels
// run all the time. In the copy's stream, kernels use the same memory directly before and after it.
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

// ---- after host functions ----------------------------------------------------------------------

// Asynchronous copies do not block the host, even if they follow work that has not begun.
struct Door {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;

  void let_pass() {
    {
      std::lock_guard lock(mutex);
      open = true;
    }
    changed.notify_all();
  }
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
    door.let_pass();
    CUDA(cudaStreamSynchronize(streams[side]));
    CHECK(holds(destination.values(), 0, kBytes, 0, 21 + side));
  }
}

// More work after a copy than a queue can hold, with allocations at the same time.
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
    door.let_pass();
    Memory meanwhile(side, kBytes);
    CUDA(cudaStreamSynchronize(streams[side]));
    CHECK(holds(here.values(), 0, kBytes, 0, 25 + side, static_cast<unsigned char>(kLaunches)));
  }
}

// ---- events ------------------------------------------------------------------------------------

// A token goes around all devices. Only events keep the order.
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
    // Without peer access, a driver cannot capture a copy between devices.
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

// The same with explicit nodes. Their copies are changed in the graph and in the executable, and
// are read back as they were set, also from a clone.
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

}  // namespace

int main() {
  make_streams();
  all_pairs("orders", &order);
  all_pairs("copies beside kernels", &beside_kernels);
  all_pairs("copies behind the host", &host_goes_on);
  all_pairs("long queues behind a copy", &long_queue);
  relay_race();
  std::printf("a relay through all devices holds\n");
  all_pairs("graphs", &graphs);
  all_pairs("graphs by hand", &graphs_by_hand);
  destroy_streams();
}
