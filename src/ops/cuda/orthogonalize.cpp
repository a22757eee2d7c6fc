// Three batched products a round, each with what is added to it in the same pass.
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {

std::vector<Gemm> products(const Orthogonalize<Tensor>& op) {
  std::vector<Gemm> launched;
  const std::int64_t rows = op.x.shape[1], columns = op.x.shape[2], elements = rows * columns;
  const std::int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  const bool wide = rows <= columns;
  Gemm all{.input = op.x.dtype, .input_b = op.x.dtype, .output = op.x.dtype, .how = op.how};
  all.workspace = op.workspace.data;
  all.workspace_bytes = op.workspace.present() ? op.workspace.bytes() : 0;
  all.batch = op.x.shape[0];

  const void* from = op.x.data;
  void* to = op.y.data;
  for (std::int64_t round = 0; round < op.rounds; ++round) {
    const Polynomial p = polynomial(op.polynomials, round);
    struct Operand {
      const void* data;
      std::int64_t ld, stride;  // of a row, and to the next of the batch
    };
    const Operand x{from, columns, elements}, gram{op.gram.data, m, m * m}, square{op.square.data, m, m * m};
    const auto multiply = [&](Gemm g, const Operand& a, const Operand& b, const Operand& c) {
      g.a = a.data, g.lda = a.ld, g.stride_a = a.stride;
      g.b = b.data, g.ldb = b.ld, g.stride_b = b.stride;
      g.c = const_cast<void*>(c.data), g.ldc = c.ld, g.stride_c = c.stride;
      launched.push_back(g);
    };
    Gemm g = all;
    g.transpose_a = !wide, g.transpose_b = wide;
    g.m = g.n = m, g.k = n;
    multiply(g, x, x, gram);
    g = all;
    g.m = g.n = g.k = m;
    g.alpha = p.c, g.beta = p.b, g.added = op.gram.data;
    multiply(g, gram, gram, square);
    g = all;
    g.m = rows, g.n = columns, g.k = m;
    g.beta = p.a, g.added = from;
    multiply(g, wide ? square : x, wide ? x : square, {to, columns, elements});

    void* const written = to;
    to = const_cast<void*>(from);
    from = written;
  }
  return launched;
}

void run(const Orthogonalize<Tensor>& op, const device::cuda::Launch& launch) {
  for (const Gemm& g : products(op)) gemm(g, launch);
}

}  // namespace redline::ops::cuda
