// Copies between devices, every byte checked: all sizes and alignments, plain, 2D, 3D and from
// array to array, by every call; both directions at the same time, many to one and one to many;
// memory that is freed after a copy. peer_order.cu tests the order of copies and other work.
#include <algorithm>
#include <memory>

#include "peer_pairs.h"

namespace {

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

// ---- memory that is freed -----------------------------------------------------------------------

void memory_comes_and_goes(int from, int to) {
  constexpr uint64_t kBytes = (1u << 20) + 9;
  for (unsigned round = 0; round < 4; ++round) {
    // Memory is freed on a device whose streams do not have the copy. The copy may not have begun
    // yet.
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

}  // namespace

int main() {
  make_streams();
  all_pairs("sizes and alignments", &sizes);
  all_pairs("shapes", &shapes);
  all_pairs("arrays", &arrays);
  all_pairs("copies both ways", &both_ways);
  all_to_one_and_back();
  std::printf("copies among all devices hold\n");
  all_pairs("memory that comes and goes", &memory_comes_and_goes);
  destroy_streams();
}
