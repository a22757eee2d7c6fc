// Cuts a product into tiles and gives each to OpenBLAS on the thread that takes it.
#include "ops/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>

#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

// The grid of tiles over C: cut by shape alone.
struct Grid {
  std::int64_t rows, columns;   // tiles
  std::int64_t tile_m, tile_n;  // extents of a tile; the last of a row or column may be smaller
};

constexpr std::int64_t kTileStep = 16;  // tiles start where OpenBLAS's register blocks do
constexpr double kSmall = 2e6;          // some 40 microseconds: not worth handing out

Grid grid_of(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t columns) {
  const auto extent = [](std::int64_t whole, std::int64_t tiles) {
    return ((whole + tiles - 1) / tiles + kTileStep - 1) / kTileStep * kTileStep;
  };
  const std::int64_t tile_m = extent(m, rows), tile_n = extent(n, columns);
  return {(m + tile_m - 1) / tile_m, (n + tile_n - 1) / tile_n, tile_m, tile_n};
}

// Narrow and tall: 176 to 192 columns ran at 58 GFLOP/s on a Neoverse-V1 core where 256 or all 768 ran at 50, since
// OpenBLAS then streams one block of B past A; up to 272 columns are not worth a cut. Rows are halved until eight tiles
// keep 2, 4 or 8 threads evenly busy, and further while a tile takes longer than some 4 milliseconds.
Grid choose_grid(std::int64_t m, std::int64_t n, std::int64_t k) {
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (flops < kSmall) return grid_of(m, n, 1, 1);
  std::int64_t rows = 1, columns = n <= 272 ? 1 : (n + 191) / 192;
  const auto tile_flops = [&] { return flops / static_cast<double>(rows * columns); };
  while (m / rows >= 192 && tile_flops() >= (rows * columns < 8 ? 64e6 : 256e6)) rows *= 2;
  while (n / columns >= 192 && rows * columns < 4 && tile_flops() >= 32e6) columns *= 2;
  return grid_of(m, n, rows, columns);
}

// OpenBLAS would start threads of its own otherwise.
void keep_to_one_thread() { [[maybe_unused]] static const bool once = (openblas_set_num_threads(1), true); }

CBLAS_TRANSPOSE blas(Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; }

}  // namespace

void gemm_tile(const Gemm& g) {
  keep_to_one_thread();
  const auto blas_int = [](std::int64_t x) { return static_cast<blasint>(x); };
  cblas_sgemm(CblasRowMajor, blas(g.ta), blas(g.tb), blas_int(g.m), blas_int(g.n), blas_int(g.k), g.alpha, g.a,
              blas_int(g.lda), g.b, blas_int(g.ldb), g.beta, g.c, blas_int(g.ldc));
}

void gemm(const Gemm& g, ThreadPool& pool) {
  const Grid grid = choose_grid(g.m, g.n, g.k);
  run_tasks(pool, grid.rows * grid.columns, [&](std::int64_t tile) {
    const std::int64_t i = tile / grid.columns * grid.tile_m, j = tile % grid.columns * grid.tile_n;
    Gemm part = g;
    part.m = std::min(grid.tile_m, g.m - i);
    part.n = std::min(grid.tile_n, g.n - j);
    part.a += g.ta == Transpose::yes ? i : i * g.lda;
    part.b += g.tb == Transpose::yes ? j * g.ldb : j;
    part.c += i * g.ldc + j;
    gemm_tile(part);
  });
}

}  // namespace redline::ops::cpu
