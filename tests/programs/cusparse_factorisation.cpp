// cuSPARSE's incomplete factorisations, csrilu02 and csric02: analysis, factorisation, zero pivots,
// and the end of their objects. At that end, cuSPARSE frees memory in stream order that it has
// allocated in other ways, or never allocated. Prints the same natively and remotely, and checks
// every status.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <cusparse.h>

#include "program.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // programs still call these functions

#define SPARSE(call)                                                     \
  do {                                                                   \
    const cusparseStatus_t status_ = (call);                             \
    if (status_ != CUSPARSE_STATUS_SUCCESS) {                            \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cusparseGetErrorName(status_));                       \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

namespace {

// A square matrix with compressed rows.
struct Matrix {
  int rows = 0;
  std::vector<int> starts, columns;
  std::vector<double> values;
};

// The five-point stencil of a grid of n x n points; symmetric and positive definite.
Matrix stencil(int n) {
  Matrix matrix;
  matrix.rows = n * n;
  matrix.starts.push_back(0);
  const auto add = [&](int column, double value) {
    matrix.columns.push_back(column);
    matrix.values.push_back(value);
  };
  for (int row = 0; row < n * n; ++row) {
    const int x = row % n, y = row / n;
    if (y > 0) add(row - n, -1);
    if (x > 0) add(row - 1, -1);
    add(row, 4.5 + 0.25 * (row % 3));
    if (x + 1 < n) add(row + 1, -1);
    if (y + 1 < n) add(row + n, -1);
    matrix.starts.push_back(static_cast<int>(matrix.columns.size()));
  }
  return matrix;
}

// Two rows. The second has no diagonal entry.
Matrix without_diagonal() { return {2, {0, 2, 3}, {0, 1, 0}, {1, 1, 1}}; }
// Its second pivot is zero: 4 - 2 * 2.
Matrix singular() { return {2, {0, 2, 4}, {0, 1, 0, 1}, {1, 2, 2, 4}}; }

template <typename T>
struct Factorisations;
#define FACTORISATIONS(type, letter)                                              \
  template <>                                                                     \
  struct Factorisations<type> {                                                   \
    static constexpr auto lu_size = cusparse##letter##csrilu02_bufferSize;        \
    static constexpr auto lu_analysis = cusparse##letter##csrilu02_analysis;      \
    static constexpr auto lu = cusparse##letter##csrilu02;                        \
    static constexpr auto cholesky_size = cusparse##letter##csric02_bufferSize;   \
    static constexpr auto cholesky_analysis = cusparse##letter##csric02_analysis; \
    static constexpr auto cholesky = cusparse##letter##csric02;                   \
  }
FACTORISATIONS(float, S);
FACTORISATIONS(double, D);

template <typename T>
class DeviceMatrix {
 public:
  explicit DeviceMatrix(const Matrix& matrix)
      : rows(matrix.rows), entries(static_cast<int>(matrix.values.size())) {
    const std::vector<T> converted(matrix.values.begin(), matrix.values.end());
    put(matrix.starts, &starts);
    put(matrix.columns, &columns);
    put(converted, &values);
    SPARSE(cusparseCreateMatDescr(&description));
  }
  ~DeviceMatrix() {
    SPARSE(cusparseDestroyMatDescr(description));
    CUDA(cudaFree(starts));
    CUDA(cudaFree(columns));
    CUDA(cudaFree(values));
  }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  std::vector<double> result() const {
    std::vector<T> found(static_cast<size_t>(entries));
    CUDA(cudaMemcpy(found.data(), values, found.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return {found.begin(), found.end()};
  }

  int rows, entries;
  int *starts = nullptr, *columns = nullptr;
  T* values = nullptr;
  cusparseMatDescr_t description = nullptr;

 private:
  template <typename U>
  static void put(const std::vector<U>& from, U** to) {
    CUDA(cudaMalloc(to, from.size() * sizeof(U)));
    CUDA(cudaMemcpy(*to, from.data(), from.size() * sizeof(U), cudaMemcpyHostToDevice));
  }
};

// The row of the first zero pivot, or -1.
template <typename Ask, typename Info>
int zero_pivot(const Ask& ask, cusparseHandle_t handle, Info info) {
  int position = -2;
  const cusparseStatus_t status = ask(handle, info, &position);
  if (status == CUSPARSE_STATUS_ZERO_PIVOT) return position;
  SPARSE(status);
  CHECK(position == -1);
  return position;
}

struct Outcome {
  int structural = -2, numerical = -2;
  std::vector<double> values;
};

template <typename T>
Outcome incomplete_lu(cusparseHandle_t handle, const Matrix& given, cusparseSolvePolicy_t policy) {
  using F = Factorisations<T>;
  DeviceMatrix<T> m(given);
  csrilu02Info_t info;
  SPARSE(cusparseCreateCsrilu02Info(&info));
  int bytes = 0;
  SPARSE(F::lu_size(handle, m.rows, m.entries, m.description, m.values, m.starts, m.columns, info,
                    &bytes));
  void* buffer;
  CUDA(cudaMalloc(&buffer, static_cast<size_t>(bytes)));
  Outcome outcome;
  // The second analysis frees the data of the first.
  for (int round = 0; round < 2; ++round) {
    SPARSE(F::lu_analysis(handle, m.rows, m.entries, m.description, m.values, m.starts, m.columns,
                          info, policy, buffer));
    outcome.structural = zero_pivot(cusparseXcsrilu02_zeroPivot, handle, info);
  }
  if (outcome.structural == -1) {
    SPARSE(F::lu(handle, m.rows, m.entries, m.description, m.values, m.starts, m.columns, info,
                 policy, buffer));
    outcome.numerical = zero_pivot(cusparseXcsrilu02_zeroPivot, handle, info);
  }
  SPARSE(cusparseDestroyCsrilu02Info(info));
  outcome.values = m.result();
  CUDA(cudaFree(buffer));
  return outcome;
}

template <typename T>
Outcome incomplete_cholesky(cusparseHandle_t handle, const Matrix& given,
                            cusparseSolvePolicy_t policy) {
  using F = Factorisations<T>;
  DeviceMatrix<T> m(given);
  csric02Info_t info;
  SPARSE(cusparseCreateCsric02Info(&info));
  int bytes = 0;
  SPARSE(F::cholesky_size(handle, m.rows, m.entries, m.description, m.values, m.starts, m.columns,
                          info, &bytes));
  void* buffer;
  CUDA(cudaMalloc(&buffer, static_cast<size_t>(bytes)));
  Outcome outcome;
  for (int round = 0; round < 2; ++round) {
    SPARSE(F::cholesky_analysis(handle, m.rows, m.entries, m.description, m.values, m.starts,
                                m.columns, info, policy, buffer));
    outcome.structural = zero_pivot(cusparseXcsric02_zeroPivot, handle, info);
  }
  if (outcome.structural == -1) {
    SPARSE(F::cholesky(handle, m.rows, m.entries, m.description, m.values, m.starts, m.columns,
                       info, policy, buffer));
    outcome.numerical = zero_pivot(cusparseXcsric02_zeroPivot, handle, info);
  }
  SPARSE(cusparseDestroyCsric02Info(info));
  outcome.values = m.result();
  CUDA(cudaFree(buffer));
  return outcome;
}

// The LU factorisation on the host: rows in order, without fill-in. Returns L and U in one matrix.
std::vector<double> host_lu(const Matrix& m) {
  std::vector<double> values = m.values;
  const auto find = [&](int row, int column) {
    for (int k = m.starts[row]; k < m.starts[row + 1]; ++k) {
      if (m.columns[k] == column) return k;
    }
    return -1;
  };
  for (int row = 1; row < m.rows; ++row) {
    for (int k = m.starts[row]; k < m.starts[row + 1] && m.columns[k] < row; ++k) {
      const int pivot = m.columns[k];
      values[k] /= values[find(pivot, pivot)];
      for (int j = k + 1; j < m.starts[row + 1]; ++j) {
        const int above = find(pivot, m.columns[j]);
        if (above >= 0) values[j] -= values[k] * values[above];
      }
    }
  }
  return values;
}

double difference(const Matrix& m, const std::vector<double>& a, const std::vector<double>& b,
                  bool lower) {
  double most = 0;
  for (int row = 0; row < m.rows; ++row) {
    for (int k = m.starts[row]; k < m.starts[row + 1]; ++k) {
      if (!lower || m.columns[k] <= row) most = std::fmax(most, std::fabs(a[k] - b[k]));
    }
  }
  return most;
}

// For a symmetric matrix A = L U with unit L. The columns of the Cholesky factor are the columns of
// L times the roots of U's diagonal.
std::vector<double> host_cholesky(const Matrix& m) {
  std::vector<double> values = host_lu(m), roots(static_cast<size_t>(m.rows));
  for (int row = 0; row < m.rows; ++row) {
    for (int k = m.starts[row]; k < m.starts[row + 1]; ++k) {
      if (m.columns[k] == row) values[k] = roots[row] = std::sqrt(values[k]);
    }
  }
  for (int row = 0; row < m.rows; ++row) {
    for (int k = m.starts[row]; k < m.starts[row + 1]; ++k) {
      if (m.columns[k] < row) values[k] *= roots[m.columns[k]];
    }
  }
  return values;
}

template <typename T>
void factorise(cusparseHandle_t handle, const char* name, double bound) {
  for (const int n : {2, 7, 40}) {
    const Matrix matrix = stencil(n);
    for (const auto policy : {CUSPARSE_SOLVE_POLICY_NO_LEVEL, CUSPARSE_SOLVE_POLICY_USE_LEVEL}) {
      const Outcome lu = incomplete_lu<T>(handle, matrix, policy);
      CHECK(lu.structural == -1 && lu.numerical == -1);
      CHECK(difference(matrix, lu.values, host_lu(matrix), false) < bound);
      const Outcome cholesky = incomplete_cholesky<T>(handle, matrix, policy);
      CHECK(cholesky.structural == -1 && cholesky.numerical == -1);
      CHECK(difference(matrix, cholesky.values, host_cholesky(matrix), true) < bound);
    }
    std::printf("%s, %d rows: right\n", name, matrix.rows);
  }
  const Outcome missing =
      incomplete_lu<T>(handle, without_diagonal(), CUSPARSE_SOLVE_POLICY_USE_LEVEL);
  const Outcome zero = incomplete_lu<T>(handle, singular(), CUSPARSE_SOLVE_POLICY_USE_LEVEL);
  std::printf("%s, zero pivots: structural %d, numerical %d and %d\n", name, missing.structural,
              zero.structural, zero.numerical);
}

}  // namespace

int main() {
  cusparseHandle_t handle;
  SPARSE(cusparseCreate(&handle));
  factorise<float>(handle, "float", 1e-5);
  factorise<double>(handle, "double", 1e-12);
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  SPARSE(cusparseSetStream(handle, stream));
  factorise<double>(handle, "in a stream", 1e-12);
  SPARSE(cusparseDestroy(handle));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaGetLastError());
  std::puts("done");
}
