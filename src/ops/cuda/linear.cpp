// Linear layers are three products over the same weight, y = x W^T, dx = dy W, dW (+)= dy^T x, and so is a chunk of a
// head. All row-major as stored.
#include <algorithm>

#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

// [rows, columns] at an address, its rows `stride` apart.
struct Matrix {
  void* data;
  DType dtype;
  std::int64_t rows, columns, stride;
};
Matrix matrix(const Tensor& t) { return {t.data, t.dtype, t.rows(), t.columns(), t.columns()}; }
Matrix rows_of(const Tensor& t, std::int64_t first, std::int64_t rows) {
  std::byte* data = t.as<std::byte>() + first * t.columns() * static_cast<std::int64_t>(size_of(t.dtype));
  return {data, t.dtype, rows, t.columns(), t.columns()};
}

enum Turned : bool { as_stored, turned };
Gemm product_of(const Matrix& a, Turned turn_a, const Matrix& b, Turned turn_b, const Matrix& c, bool accumulate) {
  return {.transpose_a = turn_a,
          .transpose_b = turn_b,
          .m = turn_a ? a.columns : a.rows,
          .n = turn_b ? b.rows : b.columns,
          .k = turn_a ? a.rows : a.columns,
          .a = a.data,
          .lda = a.stride,
          .b = b.data,
          .ldb = b.stride,
          .c = c.data,
          .ldc = c.stride,
          .input = a.dtype,
          .input_b = b.dtype,
          .output = c.dtype,
          .beta = accumulate ? 1.0f : 0.0f};
}
Gemm output(const Matrix& x, const Matrix& weight, const Matrix& y) {
  return product_of(x, as_stored, weight, turned, y, false);
}
Gemm input_grad(const Matrix& dy, const Matrix& weight, const Matrix& dx, bool accumulate) {
  return product_of(dy, as_stored, weight, as_stored, dx, accumulate);
}
Gemm weight_grad(const Matrix& x, const Matrix& dy, const Matrix& dweight, bool accumulate) {
  return product_of(dy, turned, x, as_stored, dweight, accumulate);
}

// With the node's way to compute, and its scratch.
template <class Op>
Gemm for_node(const Op& op, Gemm g) {
  g.how = op.how;
  g.workspace = op.workspace.data;
  g.workspace_bytes = op.workspace.present() ? op.workspace.bytes() : 0;
  return g;
}

// A product of operands in eight bits.
Gemm scaled(Gemm g, const Tensor& a_scale, const Tensor& b_scale, bool accumulate) {
  g.a_scale = &a_scale.as<Fp8Scale>()->inverse;
  g.b_scale = &b_scale.as<Fp8Scale>()->inverse;
  g.beta = accumulate ? 1.0f : 0.0f;
  return g;
}

}  // namespace

Gemm product(const Linear<Tensor>& op) {
  Gemm g = for_node(op, output(matrix(op.x), matrix(op.weight), matrix(op.y)));
  g.bias = op.bias.data;
  return g;
}
Gemm product(const LinearInputGrad<Tensor>& op) {
  return for_node(op, input_grad(matrix(op.dy), matrix(op.weight), matrix(op.dx), op.accumulate));
}
Gemm product(const LinearWeightGrad<Tensor>& op) {
  return for_node(op, weight_grad(matrix(op.x), matrix(op.dy), matrix(op.dweight), op.accumulate));
}

Gemm product(const Fp8Product<Tensor>& op) {
  Gemm g = for_node(op, output(matrix(op.a), matrix(op.b), matrix(op.c)));
  g.bias = op.bias.data;
  return scaled(g, op.a_scale, op.b_scale, op.accumulate);
}

Gemm product(const Route<Tensor>& op) {
  return for_node(op, output(matrix(op.x), matrix(op.weight), matrix(op.probs)));
}
std::vector<Gemm> products(const RouteGrad<Tensor>& op) {
  const std::int64_t n = op.x.rows(), experts = op.weight.rows();
  const bool halves = op.x.dtype == DType::bf16;
  const Matrix dlogits = halves ? Matrix{op.dlogits.data, DType::bf16, n, experts, 2 * experts} : matrix(op.dlogits);
  const Matrix x = matrix(op.x), dweight = matrix(op.dweight);
  std::vector<Gemm> all = {for_node(op, input_grad(dlogits, matrix(op.weight), matrix(op.dx), op.accumulate)),
                           for_node(op, weight_grad(x, dlogits, dweight, op.accumulate_weight))};
  if (!halves) return all;
  Matrix rest = dlogits;
  rest.data = op.dlogits.as<std::uint16_t>() + experts;
  all.push_back(for_node(op, weight_grad(x, rest, dweight, true)));
  return all;
}

LogitsChunk logits_chunk(const Tensor& logits) {
  const std::int64_t vocab = logits.columns(), width = 16 / static_cast<std::int64_t>(size_of(logits.dtype));
  const std::int64_t stride = (vocab + width - 1) / width * width, rows = logits.elements() / stride;
  if (stride == vocab || rows == 0) return {logits.rows(), vocab};
  return {rows > 16 ? rows / 16 * 16 : rows, stride};
}

HeadProducts head_products(const LmLoss<Tensor>& op, std::int64_t first) {
  const LogitsChunk chunk = logits_chunk(op.logits);
  const std::int64_t rows = std::min(chunk.rows, op.x.rows() - first);
  const Matrix x = rows_of(op.x, first, rows), weight = matrix(op.weight);
  const Matrix logits{op.logits.data, op.logits.dtype, rows, op.weight.rows(), chunk.stride};
  HeadProducts products;
  products.logits = for_node(op, output(x, weight, logits));
  if (!op.dx.present()) return products;
  const Matrix dx = rows_of(op.dx, first, rows), dweight = matrix(op.dweight);
  const bool accumulate = first > 0 || op.accumulate_weight;
  if (const HeadInFp8<Tensor>& fp8 = op.fp8; fp8.present()) {
    const std::int64_t row_bytes = chunk.stride * static_cast<std::int64_t>(size_of(op.logits.dtype));
    const Matrix by_rows{op.logits.data, fp8.dlogits.dtype, rows, op.weight.rows(), row_bytes};
    const Matrix by_columns{fp8.dlogits.data, fp8.dlogits.dtype, op.weight.rows(), rows, rows};
    const Matrix x_columns{fp8.x.as<std::byte>() + first, fp8.x.dtype, fp8.x.rows(), rows, fp8.x.columns()};
    products.dx = for_node(op, output(by_rows, matrix(fp8.weight), dx));
    products.dx = scaled(products.dx, fp8.dlogits_scale, fp8.weight_scale, false);
    products.dweight = for_node(op, output(by_columns, x_columns, dweight));
    products.dweight = scaled(products.dweight, fp8.dlogits_scale, fp8.x_scale, accumulate);
    return products;
  }
  products.dx = for_node(op, input_grad(logits, weight, dx, false));
  products.dweight = for_node(op, weight_grad(x, logits, dweight, accumulate));
  return products;
}

std::vector<Gemm> products(const LmLoss<Tensor>& op) {
  std::vector<Gemm> all;
  for (std::int64_t first = 0; first < op.x.rows(); first += logits_chunk(op.logits).rows) {
    const HeadProducts chunk = head_products(op, first);
    all.push_back(chunk.logits);
    if (op.dx.present()) all.insert(all.end(), {chunk.dx, chunk.dweight});
  }
  return all;
}

// No model asks for it.
void run(const Custom<Tensor>& op, const Launch&) {
  fail_machine("{}: there is no kernel for a card, only the CPU's", op.kName);
}

void run(const Linear<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }
void run(const LinearInputGrad<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }
void run(const LinearWeightGrad<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }
void run(const Fp8Product<Tensor>& op, const Launch& launch) { gemm(product(op), launch); }

}  // namespace redline::ops::cuda
