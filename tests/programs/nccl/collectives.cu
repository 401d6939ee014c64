// Every collective, with all types and reductions, into other buffers and in place; sends and
// receives in groups; all between kernels of the same stream.
#include <cmath>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "ranks.h"

constexpr int kCount = 1000;

// Small enough for every type to hold sums and products of four ranks exactly.
double value(int rank, int index) { return (rank % 4 + 1) * (index % 2 + 1); }

template <typename T>
std::vector<T> values(int rank, int first, int count) {
  std::vector<T> made(count);
  for (int i = 0; i < count; ++i)
    made[i] = static_cast<T>(static_cast<float>(value(rank, first + i)));
  return made;
}

// Elements of a buffer of device memory for each rank of the thread.
template <typename T>
class Buffers {
 public:
  Buffers(Ranks& ranks, int count) : ranks_(ranks), count_(count) {
    for (Rank& rank : ranks_) {
      CUDA(cudaSetDevice(rank.device));
      CUDA(cudaMalloc(&data_.emplace_back(), count * sizeof(T)));
    }
  }
  ~Buffers() {
    for (T* each : data_) cudaFree(each);
  }
  T* operator[](const Rank& rank) const { return data_[&rank - ranks_.data()]; }

  void put(const Rank& rank, const std::vector<T>& from, int at = 0) {
    CUDA(cudaMemcpyAsync((*this)[rank] + at, from.data(), from.size() * sizeof(T),
                         cudaMemcpyHostToDevice, rank.stream));
    CUDA(cudaStreamSynchronize(rank.stream));
  }
  std::vector<T> get(const Rank& rank) {
    std::vector<T> read(count_);
    CUDA(cudaMemcpyAsync(read.data(), (*this)[rank], count_ * sizeof(T), cudaMemcpyDeviceToHost,
                         rank.stream));
    CUDA(cudaStreamSynchronize(rank.stream));
    return read;
  }

 private:
  Ranks& ranks_;
  const int count_;
  std::vector<T*> data_;
};

// Each element of a rank's buffer must have the value that `expected` returns for its index.
template <typename T>
void check(Ranks& ranks, Buffers<T>& buffers, int first, int count,
           const std::function<double(int rank, int index)>& expected, const char* what) {
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    const std::vector<T> read = buffers.get(rank);
    for (int i = first; i < first + count; ++i) {
      const double is = static_cast<double>(static_cast<float>(read[i]));
      const double should_be = static_cast<double>(
          static_cast<float>(static_cast<T>(static_cast<float>(expected(rank.rank, i)))));
      if (is != should_be) {
        std::fprintf(stderr, "%s, rank %d, element %d: %g, not %g\n", what, rank.rank, i, is,
                     should_be);
        std::_Exit(1);
      }
    }
  }
}

double reduced(ncclRedOp_t op, int ranks, int index, bool integer) {
  double result = value(0, index);
  for (int rank = 1; rank < ranks; ++rank) {
    const double next = value(rank, index);
    if (op == ncclProd) result *= next;
    if (op == ncclMax) result = std::max(result, next);
    if (op == ncclMin) result = std::min(result, next);
    if (op == ncclSum || op == ncclAvg) result += next;
  }
  if (op != ncclAvg) return result;
  return integer ? std::floor(result / ranks) : result / ranks;
}

template <typename T>
void reductions(Ranks& ranks, ncclDataType_t type, bool integer) {
  const int count = ranks.front().ranks;
  for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
    if (op == ncclProd && sizeof(T) == 1) continue;  // it would overflow
    const auto expected = [&](int, int index) { return reduced(op, count, index, integer); };
    for (const bool in_place : {false, true}) {
      Buffers<T> from(ranks, kCount), to(ranks, kCount);
      Buffers<T>& result = in_place ? from : to;
      for (Rank& rank : ranks) from.put(rank, values<T>(rank.rank, 0, kCount));
      each(ranks, [&](Rank& rank) {
        NCCL(ncclAllReduce(from[rank], result[rank], kCount, type, op, rank.comm, rank.stream));
      });
      check<T>(ranks, result, 0, kCount, expected, "all-reduce");
    }
  }
}

void all_types(Ranks& ranks) {
  reductions<int8_t>(ranks, ncclInt8, true);
  reductions<uint8_t>(ranks, ncclUint8, true);
  reductions<int32_t>(ranks, ncclInt32, true);
  reductions<uint32_t>(ranks, ncclUint32, true);
  reductions<int64_t>(ranks, ncclInt64, true);
  reductions<uint64_t>(ranks, ncclUint64, true);
  reductions<__half>(ranks, ncclFloat16, false);
  reductions<float>(ranks, ncclFloat32, false);
  reductions<double>(ranks, ncclFloat64, false);
  reductions<__nv_bfloat16>(ranks, ncclBfloat16, false);
  say(ranks, "all-reduce of every type: right");
}

// The factor is read from host memory when the operation is created, or from device memory when it
// runs.
void factors(Ranks& ranks) {
  const int count = ranks.front().ranks;
  Buffers<float> from(ranks, kCount), to(ranks, kCount), scalars(ranks, 1);
  for (const bool of_device : {false, true}) {
    std::vector<ncclRedOp_t> ops(ranks.size());
    for (Rank& rank : ranks) {
      float factor = static_cast<float>(rank.rank + 2);
      CUDA(cudaSetDevice(rank.device));
      from.put(rank, values<float>(rank.rank, 0, kCount));
      scalars.put(rank, {of_device ? factor : 0.0f});
      NCCL(ncclRedOpCreatePreMulSum(
          &ops[&rank - ranks.data()], of_device ? scalars[rank] : &factor, ncclFloat32,
          of_device ? ncclScalarDevice : ncclScalarHostImmediate, rank.comm));
      factor = 0;
    }
    each(ranks, [&](Rank& rank) {
      NCCL(ncclAllReduce(from[rank], to[rank], kCount, ncclFloat32, ops[&rank - ranks.data()],
                         rank.comm, rank.stream));
    });
    for (Rank& rank : ranks) NCCL(ncclRedOpDestroy(ops[&rank - ranks.data()], rank.comm));
    check<float>(
        ranks, to, 0, kCount,
        [&](int, int index) {
          double sum = 0;
          for (int rank = 0; rank < count; ++rank) sum += (rank + 2) * value(rank, index);
          return sum;
        },
        "multiplied sum");
  }
  say(ranks, "sums with factors: right");
}

void rooted(Ranks& ranks) {
  const int count = ranks.front().ranks;
  for (int root = 0; root < count; ++root) {
    Buffers<int> from(ranks, kCount), to(ranks, kCount * count), all(ranks, kCount * count);
    for (Rank& rank : ranks) {
      CUDA(cudaSetDevice(rank.device));
      from.put(rank, values<int>(rank.rank, 0, kCount));
      all.put(rank, values<int>(rank.rank, 0, kCount * count));
    }
    each(ranks, [&](Rank& rank) {
      NCCL(ncclBroadcast(from[rank], to[rank], kCount, ncclInt32, root, rank.comm, rank.stream));
    });
    check<int>(
        ranks, to, 0, kCount, [&](int, int index) { return value(root, index); }, "broadcast");
    each(ranks, [&](Rank& rank) {
      NCCL(ncclReduce(from[rank], to[rank], kCount, ncclInt32, ncclSum, root, rank.comm,
                      rank.stream));
    });
    check<int>(
        ranks, to, 0, kCount,
        [&](int rank, int index) {
          return rank == root ? reduced(ncclSum, count, index, true) : value(root, index);
        },
        "reduce");
    each(ranks, [&](Rank& rank) {
      NCCL(ncclGather(from[rank], to[rank], kCount, ncclInt32, root, rank.comm, rank.stream));
    });
    check<int>(
        ranks, to, 0, kCount,
        [&](int rank, int index) { return value(rank == root ? 0 : root, index); }, "gather");
    each(ranks, [&](Rank& rank) {
      NCCL(ncclScatter(all[rank], to[rank], kCount, ncclInt32, root, rank.comm, rank.stream));
    });
    check<int>(
        ranks, to, 0, kCount,
        [&](int rank, int index) { return value(root, rank * kCount + index); }, "scatter");
    each(ranks, [&](Rank& rank) {
      NCCL(ncclBcast(from[rank], kCount, ncclInt32, root, rank.comm, rank.stream));
    });
    check<int>(
        ranks, from, 0, kCount, [&](int, int index) { return value(root, index); },
        "broadcast in place");
  }
  say(ranks, "collectives with a root: right");
}

void gathering(Ranks& ranks) {
  const int count = ranks.front().ranks;
  Buffers<float> part(ranks, kCount), whole(ranks, kCount * count), other(ranks, kCount * count);
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    part.put(rank, values<float>(rank.rank, 0, kCount));
    whole.put(rank, values<float>(rank.rank, 0, kCount * count));
    other.put(rank, values<float>(rank.rank, 0, kCount), rank.rank * kCount);
  }
  const auto of_owner = [&](int, int index) { return value(index / kCount, index % kCount); };
  each(ranks, [&](Rank& rank) {  // in place
    float* buffer = other[rank];
    NCCL(ncclAllGather(buffer + rank.rank * kCount, buffer, kCount, ncclFloat32, rank.comm,
                       rank.stream));
  });
  check<float>(ranks, other, 0, kCount * count, of_owner, "all-gather in place");
  each(ranks, [&](Rank& rank) {
    NCCL(ncclAlltoAll(whole[rank], other[rank], kCount, ncclFloat32, rank.comm, rank.stream));
  });
  check<float>(
      ranks, other, 0, kCount * count,
      [&](int rank, int index) { return value(index / kCount, rank * kCount + index % kCount); },
      "all-to-all");
  each(ranks, [&](Rank& rank) {
    NCCL(ncclAllGather(part[rank], other[rank], kCount, ncclFloat32, rank.comm, rank.stream));
  });
  check<float>(ranks, other, 0, kCount * count, of_owner, "all-gather");
  each(ranks, [&](Rank& rank) {
    NCCL(ncclReduceScatter(whole[rank], part[rank], kCount, ncclFloat32, ncclSum, rank.comm,
                           rank.stream));
  });
  check<float>(
      ranks, part, 0, kCount,
      [&](int rank, int index) { return reduced(ncclSum, count, rank * kCount + index, false); },
      "reduce-scatter");
  say(ranks, "collectives of parts: right");
}

void point_to_point(Ranks& ranks) {
  const int count = ranks.front().ranks;
  Buffers<int> from(ranks, kCount * count), to(ranks, kCount * count);
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    from.put(rank, values<int>(rank.rank, 0, kCount * count));
  }
  // Every rank sends to all ranks, itself included, at the same time.
  each(ranks, [&](Rank& rank) {
    for (int peer = 0; peer < count; ++peer) {
      NCCL(ncclSend(from[rank] + peer * kCount, kCount, ncclInt32, peer, rank.comm, rank.stream));
      NCCL(ncclRecv(to[rank] + peer * kCount, kCount, ncclInt32, peer, rank.comm, rank.stream));
    }
  });
  check<int>(
      ranks, to, 0, kCount * count,
      [&](int rank, int index) { return value(index / kCount, rank * kCount + index % kCount); },
      "sends to all");
  // Two messages of different sizes between the same ranks, in their order.
  each(ranks, [&](Rank& rank) {
    const int after = (rank.rank + 1) % count, before = (rank.rank + count - 1) % count;
    NCCL(ncclSend(from[rank], 10, ncclInt32, after, rank.comm, rank.stream));
    NCCL(ncclSend(from[rank] + 10, 90, ncclInt32, after, rank.comm, rank.stream));
    NCCL(ncclRecv(to[rank], 10, ncclInt32, before, rank.comm, rank.stream));
    NCCL(ncclRecv(to[rank] + 10, 90, ncclInt32, before, rank.comm, rank.stream));
  });
  check<int>(
      ranks, to, 0, 100,
      [&](int rank, int index) { return value((rank + count - 1) % count, index); }, "ring");
  say(ranks, "sends and receives: right");
}

__global__ void add(int* data, int count, int amount) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += amount;
}

// Operations keep their place among kernels and copies of their stream, and among those of other
// streams that wait for events. Nothing waits on the host.
void order(Ranks& ranks) {
  const int count = ranks.front().ranks, rounds = 8;
  Buffers<int> data(ranks, kCount), copy(ranks, kCount);
  std::vector<cudaStream_t> second(ranks.size());
  std::vector<cudaEvent_t> events(ranks.size());
  for (Rank& rank : ranks) {
    const size_t i = &rank - ranks.data();
    CUDA(cudaSetDevice(rank.device));
    CUDA(cudaStreamCreateWithFlags(&second[i], cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    data.put(rank, std::vector<int>(kCount, 0));
  }
  for (int round = 0; round < rounds; ++round) {
    for (Rank& rank : ranks) {
      CUDA(cudaSetDevice(rank.device));
      add<<<(kCount + 127) / 128, 128, 0, rank.stream>>>(data[rank], kCount, rank.rank + 1);
      CUDA(cudaGetLastError());
    }
    each(ranks, [&](Rank& rank) {
      NCCL(ncclAllReduce(data[rank], data[rank], kCount, ncclInt32, ncclMax, rank.comm,
                         rank.stream));
    });
    each(ranks, [&](Rank& rank) {  // operations of one group have no order
      NCCL(ncclAllReduce(data[rank], copy[rank], kCount, ncclInt32, ncclSum, rank.comm,
                         rank.stream));
    });
    for (Rank& rank : ranks) {
      const size_t i = &rank - ranks.data();
      CUDA(cudaSetDevice(rank.device));
      CUDA(cudaEventRecord(events[i], rank.stream));
      CUDA(cudaStreamWaitEvent(second[i], events[i], 0));
    }
    std::vector<cudaStream_t> first;
    for (Rank& rank : ranks) first.push_back(rank.stream);
    each(ranks, [&](Rank& rank) {
      NCCL(ncclAllReduce(copy[rank], copy[rank], kCount, ncclInt32, ncclMin, rank.comm,
                         second[&rank - ranks.data()]));
    });
    for (Rank& rank : ranks) {
      const size_t i = &rank - ranks.data();
      CUDA(cudaSetDevice(rank.device));
      CUDA(cudaEventRecord(events[i], second[i]));
      CUDA(cudaStreamWaitEvent(rank.stream, events[i], 0));
    }
  }
  check<int>(
      ranks, data, 0, kCount, [&](int, int) { return rounds * count; }, "kernels and maxima");
  check<int>(
      ranks, copy, 0, kCount, [&](int, int) { return rounds * count * count; }, "sums of maxima");
  for (size_t i = 0; i < ranks.size(); ++i) {
    CUDA(cudaStreamDestroy(second[i]));
    CUDA(cudaEventDestroy(events[i]));
  }
  say(ranks, "order in streams: right");
}

int main(int argc, char** argv) {
  return run(argc, argv, [](Ranks& ranks) {
    all_types(ranks);
    factors(ranks);
    rooted(ranks);
    gathering(ranks);
    point_to_point(ranks);
    order(ranks);
  });
}
