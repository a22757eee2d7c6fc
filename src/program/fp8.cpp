// Products in eight bits, in two walks over the nodes: the first notes which values products read, and the second
// rewrites the products and has each such value cast after the node that made it.
#include <algorithm>
#include <optional>

#include "program/builder.h"

namespace redline::program {
namespace {

using Nodes = std::vector<Node>;

// What becomes of a result at full width where its op writes it in eight bits.
enum class FullWidth { optional, kept, dropped };  // optional: dropped where no other node reads it

// The result that an op can write in eight bits by itself (its header says which), and the op's place for the copies.
struct Fp8Output {
  ops::Fp8Copies<ValueId>* copies = nullptr;  // null: the op cannot
  ValueId* result = nullptr;
  FullWidth full_width = FullWidth::optional;
  bool by_rows = false;       // columns are made of the rows, which have to be there
  std::int64_t multiple = 1;  // that it asks of the result's width
  bool in_blocks = false;     // it can write columns so
};
Fp8Output fp8_output(ops::AddNorm<ValueId>& op) { return {&op.fp8, &op.y}; }
Fp8Output fp8_output(ops::AddNormGrad<ValueId>& op) { return {&op.fp8, &op.dresidual, FullWidth::kept}; }
Fp8Output fp8_output(ops::SwiGlu<ValueId>& op) { return {&op.fp8, &op.y, FullWidth::optional, false, 1, true}; }
Fp8Output fp8_output(ops::SwiGluGrad<ValueId>& op) {  // of either half
  return {&op.fp8, &op.dgate_up, FullWidth::optional, false, 2 * ops::kFp8Multiple, true};
}
Fp8Output fp8_output(ops::GatherRows<ValueId>& op) { return {&op.fp8, &op.y, FullWidth::optional, true, 1, true}; }
Fp8Output fp8_output(ops::CombineGrad<ValueId>& op) { return {&op.fp8, &op.dy, FullWidth::optional, true, 1, true}; }
Fp8Output fp8_output(ops::RopeQkNormGrad<ValueId>& op) { return {&op.fp8, &op.dqkv, FullWidth::dropped}; }
template <class Other>
Fp8Output fp8_output(Other&) {
  return {};
}

// The copies that an op writes: its own, of its result, or those that it is there for.
Fp8Written written_by(const ops::Quantize<ValueId>& op) { return {op.to.rows, op.to.columns, op.to.scale}; }
Fp8Written written_by(const ops::QuantizeWeight<ValueId>& op) { return {op.rows, op.columns, op.scale}; }
template <class Other>
Fp8Written written_by(const Other& op) {
  if constexpr (requires { op.fp8.rows; })
    return {op.fp8.rows, op.fp8.columns, op.fp8.scale};
  else
    return {};
}

Shape turned_over(const Shape& s) { return s.rank() == 3 ? Shape{s[0], s[2], s[1]} : Shape{s[1], s[0]}; }

// One value as one node leaves it, in eight bits.
struct Copies {
  std::size_t maker = 0;  // node
  ValueId of;
  Fp8Entry entry;
  DType dtype = DType::e4m3;
  bool rows = false, columns = false, in_blocks = false;  // wanted
  ValueId row_copy = {}, column_copy = {};
};

// A product of the program: the values whose copies it takes, as indices, or the weight.
struct Product {
  std::size_t node = 0;
  const Fp8Linear* linear = nullptr;
  std::optional<std::size_t> x, dy;
};

class Fp8Pass {
 public:
  Fp8Pass(Writer& writer, Fp8Linears& linears) : w_(writer), linears_(linears), nodes_(writer.program().nodes) {
    for (const auto& [weight, linear] : linears.by_weight) weight_of_[w_.gradient_of_parameter(weight)] = weight;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      each_operand(nodes_[i].op, [&](std::string_view, ValueId id, Access access) {
        uses_[w_.set().owner(id)].push_back({i, access != Access::write, access != Access::read});
      });
  }

  void run() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) std::visit([&](const auto& op) { look_at(i, op); }, nodes_[i].op);
    std::multimap<std::size_t, std::size_t> made_by;  // copies, by their makers
    for (std::size_t c = 0; c < copies_.size(); ++c) made_by.emplace(copies_[c].maker, c);
    Nodes written;
    std::size_t product = 0, head = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (product < products_.size() && products_[product].node == i) {
        nodes_[i].op = in_fp8(products_[product++], nodes_[i], written);
        nodes_[i].cost = cost_of(nodes_[i].op, w_.set().values);
      }
      if (head < heads_.size() && heads_[head].node == i) {
        auto& loss = std::get<ops::LmLoss<ValueId>>(nodes_[i].op);
        loss.fp8.x = copies_[*heads_[head++].x].column_copy;
        if (!loss.fp8.weight.present())
          loss.fp8.weight = turned(loss.weight, loss.fp8.weight_scale, nodes_[i], written);
        nodes_[i].cost = cost_of(nodes_[i].op, w_.set().values);
      }
      const std::size_t at = written.size();
      written.push_back(std::move(nodes_[i]));
      for (auto [c, end] = made_by.equal_range(i); c != end; ++c) make(copies_[c->second], written, at);
    }
    w_.program().nodes = std::move(written);
  }

 private:
  void look_at(std::size_t i, const ops::Linear<ValueId>& op) { look_at_output(i, op); }
  void look_at(std::size_t i, const ops::GroupedLinear<ValueId>& op) { look_at_output(i, op); }
  void look_at(std::size_t i, const ops::LinearInputGrad<ValueId>& op) { look_at_input_grad(i, op); }
  void look_at(std::size_t i, const ops::GroupedLinearInputGrad<ValueId>& op) { look_at_input_grad(i, op); }
  void look_at(std::size_t i, const ops::LinearWeightGrad<ValueId>& op) { look_at_weight_grad(i, op); }
  void look_at(std::size_t i, const ops::GroupedLinearWeightGrad<ValueId>& op) { look_at_weight_grad(i, op); }

  void look_at_output(std::size_t i, const auto& op) {
    const Fp8Linear* const linear = find(op.weight);
    if (!linear || !linear->output) return;
    products_.push_back({i, linear, want(i, op.x, linear->x, DType::e4m3, true), {}});
  }
  void look_at_input_grad(std::size_t i, const auto& op) {
    const Fp8Linear* const linear = find(op.weight);
    if (linear && linear->input_grad)
      products_.push_back({i, linear, {}, want(i, op.dy, linear->dy, DType::e5m2, true)});
  }
  void look_at_weight_grad(std::size_t i, const auto& op) {
    const auto weight = weight_of_.find(op.dweight);
    const Fp8Linear* const linear = weight == weight_of_.end() ? nullptr : find(weight->second);
    if (!linear || !linear->weight_grad) return;
    const std::size_t x = want(i, op.x, linear->x, DType::e4m3, false);
    const std::size_t dy = want(i, op.dy, linear->dy, DType::e5m2, false);
    products_.push_back({i, linear, x, dy});
    if constexpr (requires { op.offsets; }) copies_[x].in_blocks = copies_[dy].in_blocks = true;
  }
  // Its logits read x as well, so the node that makes x still writes it; and x has a bound, since a norm makes it.
  void look_at(std::size_t i, const ops::LmLoss<ValueId>& op) {
    if (!op.fp8.x_scale.present()) return;
    const std::size_t x = want(i, op.x, {op.fp8.x_scale, kAbsent}, DType::e4m3, false);
    REDLINE_CHECK(std::holds_alternative<ops::AddNorm<ValueId>>(nodes_[copies_[x].maker].op), "{} is no norm's output",
                  w_.at(op.x).full_name());
    heads_.push_back({i, nullptr, x, {}});
  }
  template <class Other>
  void look_at(std::size_t, const Other&) {}

  const Fp8Linear* find(ValueId weight) const {
    const auto it = linears_.by_weight.find(weight);
    return it == linears_.by_weight.end() ? nullptr : &it->second;
  }

  // The copies of a value as node `reader` finds it, by rows or by columns.
  std::size_t want(std::size_t reader, ValueId value, const Fp8Entry& entry, DType dtype, bool rows) {
    const std::size_t maker = maker_of(reader, value);
    const auto [known, fresh] = copy_of_.try_emplace({maker, value}, copies_.size());
    if (fresh) copies_.push_back({.maker = maker, .of = value, .entry = entry, .dtype = dtype});
    Copies& c = copies_[known->second];
    REDLINE_CHECK(c.entry.scale == entry.scale, "two linears read {}", w_.at(value).full_name());
    (rows ? c.rows : c.columns) = true;
    return known->second;
  }

  // An operand of a node, as the program was before this pass.
  struct Use {
    std::size_t node;
    bool reads, writes;
  };
  std::size_t maker_of(std::size_t reader, ValueId value) const {
    const std::vector<Use>& uses = uses_.at(w_.set().owner(value));
    for (auto u = uses.rbegin(); u != uses.rend(); ++u)
      if (u->node < reader && u->writes) return u->node;
    fail_machine("nothing has written {} before {}", w_.at(value).full_name(), nodes_[reader].full_name());
  }

  // Makes the copies: the node at `at` casts itself, or another node after all written so far does.
  void make(Copies& c, Nodes& written, std::size_t at) {
    const Node& maker = written[at];
    const Shape shape = w_.shape(c.of);
    const auto copy = [&](bool wanted, std::string_view what, Shape s) {
      if (!wanted) return kAbsent;
      w_.set_place(maker.place);
      return w_.make(fmt::format("{} {}", w_.at(c.of).name, what), s, Role::activation, c.dtype);
    };
    c.row_copy = copy(c.rows, "in fp8", shape);
    c.column_copy = copy(c.columns, "in fp8 by columns",
                         c.in_blocks ? ops::columns_in_blocks(shape[0], shape[1]) : Shape{shape[1], shape[0]});
    ops::Fp8Copies<ValueId> to{c.row_copy, c.column_copy, c.entry.scale, c.entry.amax};
    if (const auto* norm = std::get_if<ops::AddNorm<ValueId>>(&maker.op); norm && norm->y == c.of) {
      to.amax = kAbsent;
      linears_.bounds[c.entry.scale] = {norm->weight, norm->one_plus};
    }
    if (w_.lowering().on_card() && made_by_itself(c, to, written[at])) return;
    Node node{ops::Quantize<ValueId>{c.of, to}, maker.phase, {}, fmt::format("{}/cast", maker.name), maker.place};
    node.cost = cost_of(node.op, w_.set().values);
    written.push_back(std::move(node));
  }

  // A card's kernels cast what they have in registers, where they can; the bytes are the same.
  bool made_by_itself(const Copies& c, const ops::Fp8Copies<ValueId>& to, Node& maker) const {
    const Fp8Output output = std::visit(
        []<class Made>(Made& op) {
          return requires { Made::kCastsOnCard; }
          ? fp8_output(op) : Fp8Output{};
        },
        maker.op);
    if (!output.copies || *output.result != c.of || (output.by_rows && !c.rows)) return false;
    if (w_.at(c.of).shape[1] % output.multiple != 0 || (c.in_blocks && !output.in_blocks)) return false;
    const bool others = read_by_others(c);
    if (output.full_width == FullWidth::dropped && others) return false;
    *output.copies = to;
    if (output.full_width == FullWidth::optional && !others) *output.result = kAbsent;
    maker.cost = cost_of(maker.op, w_.set().values);
    return true;
  }

  // Whether nodes other than products in eight bits read the value as its maker left it.
  bool read_by_others(const Copies& c) const {
    std::size_t written = nodes_.size();  // by the next node that does
    for (const Use& use : uses_.at(w_.set().owner(c.of))) {
      if (use.node <= c.maker) continue;
      if (use.node > written) return false;
      const auto product = std::ranges::lower_bound(products_, use.node, {}, &Product::node);
      if (use.reads && (product == products_.end() || product->node != use.node)) return true;
      if (use.writes) written = use.node;
    }
    return false;
  }

  // A weight by columns in eight bits for the node that comes next: a cast, or what is in eight bits turned over; of
  // several matrices each.
  ValueId turned(ValueId weight, ValueId scale, const Node& reader, Nodes& written) {
    const Value of = w_.at(weight);
    w_.set_place(reader.place);
    const ValueId columns = w_.make(of.name + " by columns", turned_over(of.shape), Role::activation, DType::e4m3);
    w_.set().at(columns).parameter = of.parameter;
    Node node{ops::Quantize<ValueId>{weight, {kAbsent, columns, scale, kAbsent}},
              reader.phase,
              {},
              fmt::format("{}/turn over", reader.name),
              reader.place};
    node.cost = cost_of(node.op, w_.set().values);
    written.push_back(std::move(node));
    return columns;
  }

  Op in_fp8(const Product& p, const Node& node, Nodes& written) {
    return std::visit([&](const auto& op) -> Op { return product_of(op, p, node, written); }, node.op);
  }
  ValueId rows_of(const std::optional<std::size_t>& copies) const { return copies_[*copies].row_copy; }
  ValueId columns_of(const std::optional<std::size_t>& copies, bool in_blocks = false) const {
    const Copies& c = copies_[*copies];
    REDLINE_CHECK(c.in_blocks == in_blocks, "{} is read by columns of two layouts", w_.at(c.of).full_name());
    return c.column_copy;
  }
  ValueId columns_of_weight(const Fp8Linear& l, const Node& node, Nodes& written) {
    return l.weight_columns.present() ? l.weight_columns : turned(l.weight_rows, l.weight_scale, node, written);
  }
  ops::ProductHow of_output(ops::ProductHow how) const {
    how.fast_sums = linears_.fast_sums;  // gradients keep all bits of their sums
    return how;
  }

  Op product_of(const ops::Linear<ValueId>& op, const Product& p, const Node&, Nodes&) {
    const Fp8Linear& l = *p.linear;
    return ops::Fp8Product<ValueId>{.a = rows_of(p.x),
                                    .b = l.weight_rows,
                                    .a_scale = l.x.scale,
                                    .b_scale = l.weight_scale,
                                    .c = op.y,
                                    .workspace = op.workspace,
                                    .how = of_output(op.how),
                                    .bias = op.bias};
  }
  Op product_of(const ops::LinearInputGrad<ValueId>& op, const Product& p, const Node& node, Nodes& written) {
    const Fp8Linear& l = *p.linear;
    return ops::Fp8Product<ValueId>{.a = rows_of(p.dy),
                                    .b = columns_of_weight(l, node, written),
                                    .a_scale = l.dy.scale,
                                    .b_scale = l.weight_scale,
                                    .c = op.dx,
                                    .accumulate = op.accumulate,
                                    .workspace = op.workspace,
                                    .how = op.how};
  }
  Op product_of(const ops::LinearWeightGrad<ValueId>& op, const Product& p, const Node&, Nodes&) {
    const Fp8Linear& l = *p.linear;
    return ops::Fp8Product<ValueId>{.a = columns_of(p.dy),
                                    .b = columns_of(p.x),
                                    .a_scale = l.dy.scale,
                                    .b_scale = l.x.scale,
                                    .c = op.dweight,
                                    .accumulate = op.accumulate,
                                    .workspace = op.workspace,
                                    .how = op.how};
  }
  Op product_of(const ops::GroupedLinear<ValueId>& op, const Product& p, const Node&, Nodes&) {
    const Fp8Linear& l = *p.linear;
    return ops::GroupedFp8Product<ValueId>{rows_of(p.x),   l.weight_rows, op.offsets, l.x.scale,
                                           l.weight_scale, op.y,          false,      of_output(op.how)};
  }
  Op product_of(const ops::GroupedLinearInputGrad<ValueId>& op, const Product& p, const Node& node, Nodes& written) {
    const Fp8Linear& l = *p.linear;
    const ValueId columns = columns_of_weight(l, node, written);
    return ops::GroupedFp8Product<ValueId>{rows_of(p.dy),  columns, op.offsets,    l.dy.scale,
                                           l.weight_scale, op.dx,   op.accumulate, op.how};
  }
  Op product_of(const ops::GroupedLinearWeightGrad<ValueId>& op, const Product& p, const Node&, Nodes&) {
    const Fp8Linear& l = *p.linear;
    return ops::GroupedFp8WeightGrad<ValueId>{
        columns_of(p.dy, true), columns_of(p.x, true), op.offsets, l.dy.scale, l.x.scale, op.dweight,
        w_.shape(op.x)[0],      op.accumulate,         op.how};
  }
  template <class Other>
  Op product_of(const Other& op, const Product&, const Node&, Nodes&) {
    fail_machine("{} is no product of a linear", op.kName);
  }

  Writer& w_;
  Fp8Linears& linears_;
  Nodes& nodes_;
  std::map<ValueId, ValueId> weight_of_;      // by its gradient
  std::map<ValueId, std::vector<Use>> uses_;  // by who owns the bytes, in the order of nodes
  std::vector<Copies> copies_;
  std::map<std::pair<std::size_t, ValueId>, std::size_t> copy_of_;  // by maker and value
  std::vector<Product> products_, heads_;                           // in the order of their nodes
};

}  // namespace

void each_fp8_copy(const Node& node, const std::function<void(const Fp8Written&)>& visit) {
  const Fp8Written written = std::visit([](const auto& op) { return written_by(op); }, node.op);
  if (written.any().present()) visit(written);
}

void products_in_fp8(Writer& writer, Fp8Linears& linears) { Fp8Pass(writer, linears).run(); }

}  // namespace redline::program
