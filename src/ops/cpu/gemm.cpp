// Cuts a product into tiles and gives each to OpenBLAS on the thread that takes it.
#include "ops/cpu/gemm.h"

#include <cblas.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/error.h"
#include "base/words.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

// The grid of tiles over C: cut by shape alone.
struct Grid {
  std::int64_t rows, columns;   // tiles
  std::int64_t tile_m, tile_n;  // extents of a tile; the last of a row or column may be smaller
};

constexpr std::int64_t kTileStep = 16;  // tiles start where OpenBLAS's register blocks do

// The longer side is halved: to 4 tiles where a tile keeps half a millisecond of work, to 8 and on where it also keeps
// its size, since each tile packs its rows of A and columns of B anew: 256 x 704 x 2048 in tiles of 128 x 176 ran 5%
// slower than in tiles of 256 x 176.
Grid choose_grid(std::int64_t m, std::int64_t n, std::int64_t k) {
  struct Limit {
    std::int64_t tiles;  // below this many,
    std::int64_t side;   // cut a side of at least this
    double flops;        // in a tile of at least this much work
  };
  constexpr Limit kLimits[] = {{4, 64, 32e6}, {8, 320, 128e6}, {256, 320, 512e6}};
  std::int64_t rows = 1, columns = 1;
  for (const Limit& limit : kLimits) {
    while (rows * columns < limit.tiles) {
      const std::int64_t height = m / rows, width = n / columns;
      const double flops = 2.0 * static_cast<double>(height) * static_cast<double>(width) * static_cast<double>(k);
      if (std::max(height, width) < limit.side || flops < limit.flops) break;
      (height >= width ? rows : columns) *= 2;
    }
  }
  const auto extent = [](std::int64_t whole, std::int64_t tiles) {
    return ((whole + tiles - 1) / tiles + kTileStep - 1) / kTileStep * kTileStep;
  };
  const std::int64_t tile_m = extent(m, rows), tile_n = extent(n, columns);
  return {(m + tile_m - 1) / tile_m, (n + tile_n - 1) / tile_n, tile_m, tile_n};
}

// OpenBLAS would start threads of its own otherwise.
void keep_to_one_thread() { [[maybe_unused]] static const bool once = (openblas_set_num_threads(1), true); }

// OpenBLAS packs into a buffer for each thread that calls it, and tries without end where it gets none. So the room
// under `ulimit -v` and `ulimit -d` is looked for before the first product, as memory that can be written: the latter
// counts no other. Without a limit the system gives what is not touched yet.
void look_for_buffers(int threads) {
#ifdef __x86_64__
  constexpr std::size_t kBuffer = std::size_t{130} << 20;  // BUFFER_SIZE of OpenBLAS and a little
#else
  constexpr std::size_t kBuffer = std::size_t{34} << 20;
#endif
  const auto limited = [](auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  if (!limited(RLIMIT_AS) && !limited(RLIMIT_DATA)) return;
  const std::size_t bytes = kBuffer * static_cast<std::size_t>(threads);
  void* room = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED)
    fail_machine(
        "{} need {} MiB of memory for matrix products, and `ulimit -{}` leaves less; raise it, or set REDLINE_THREADS "
        "lower",
        counted(threads, "thread"), bytes >> 20, limited(RLIMIT_AS) ? 'v' : 'd');
  ::munmap(room, bytes);
}

CBLAS_TRANSPOSE blas(Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; }

}  // namespace

void gemm_tile(const Gemm& g) {
  keep_to_one_thread();
  const auto blas_int = [](std::int64_t x) { return static_cast<blasint>(x); };
  cblas_sgemm(CblasRowMajor, blas(g.ta), blas(g.tb), blas_int(g.m), blas_int(g.n), blas_int(g.k), g.alpha, g.a,
              blas_int(g.lda), g.b, blas_int(g.ldb), g.beta, g.c, blas_int(g.ldc));
}

void require_buffers(ThreadPool& pool) {
  [[maybe_unused]] static const bool once = (look_for_buffers(pool.threads()), true);
}

void gemm(const Gemm& g, ThreadPool& pool) {
  require_buffers(pool);
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
