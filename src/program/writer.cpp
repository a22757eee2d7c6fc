// Declares values and appends nodes. Costs are taken as a node is appended, from the shapes of its operands.
#include "program/writer.h"

#include <algorithm>

#include "program/cost.h"

namespace redline::program {

ValueId Writer::declare(std::string name, Shape shape, DType dtype, Role role) {
  set_.values.push_back({.name = std::move(name), .shape = shape, .dtype = dtype, .role = role, .alias_of = {}});
  return {static_cast<std::int32_t>(set_.values.size()) - 1};
}

ValueId Writer::view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset) {
  const Value whole = set_.at(of);
  const ValueId id = declare(std::move(name), shape, whole.dtype, whole.role);
  Value& v = set_.values[static_cast<std::size_t>(id.index)];
  v.alias_of = of;
  v.alias_offset = byte_offset;
  v.place = whole.place;
  REDLINE_CHECK(byte_offset >= 0 && byte_offset + v.bytes() <= whole.bytes(), "view {} leaves {}", v.name, whole.name);
  return id;
}

void Writer::begin(std::string name, Lowering lowering) {
  program_ = {.name = std::move(name), .nodes = {}, .documents = lowering.attention.documents};
  lowering_ = lowering;
  pairs_ = 0;
  place_ = {};
  of_activation_.clear();
  holders_.clear();
  claimed_.clear();
  read_.clear();
  latest_.clear();
}

ValueId Writer::make(std::string_view name, Shape shape, Role role, DType dtype) {
  const ValueId id = declare(std::string(name), shape, dtype, role);
  set_.values[static_cast<std::size_t>(id.index)].place = place_;
  return id;
}

void Writer::append(Op op, Phase phase, std::string name) {
  if (phase == Phase::forward && lowering_.training) {
    each_operand(op, [&](std::string_view operand, ValueId id, Access access) {
      REDLINE_CHECK(access == Access::read || !read_.contains(set_.owner(id)),
                    "{} overwrites {} ({}), which an earlier node has read", name, operand, at(id).full_name());
      const auto latest = latest_.find(set_.owner(id));
      REDLINE_CHECK(access == Access::write || latest == latest_.end() || latest->second == id,
                    "{} reads {} ({}), whose memory is {} by now", name, operand, at(id).full_name(),
                    at(latest->second).full_name());
    });
    each_operand(op, [&](std::string_view, ValueId id, Access access) {
      if (persistent(at(id).role)) return;
      if (access == Access::read) read_.insert(set_.owner(id));
      if (access == Access::write) latest_[set_.owner(id)] = id;
    });
  }
  if (phase == Phase::backward) name += "/backward";
  const Cost cost = cost_of(op, set_.values);
  program_.nodes.push_back({std::move(op), phase, cost, std::move(name), place_});
}

std::int32_t Writer::start(Op op, Phase phase, std::string name) {
  append(std::move(op), phase, std::move(name));
  Node& node = program_.nodes.back();
  node.when = When::start;
  return node.pair = pairs_++;
}

void Writer::wait(std::int32_t pair) {
  const auto started = std::ranges::find(program_.nodes, pair, &Node::pair);
  REDLINE_CHECK(started != program_.nodes.end(), "nothing was started as pair {}", pair);
  Node node = *started;
  node.when = When::wait;
  node.cost = {};
  node.name += "/wait";
  program_.nodes.push_back(std::move(node));
}

bool Writer::claim(ValueId parameter) {
  const bool first = claimed_.insert(parameter).second;
  return (lowering_.accumulate && !lowering_.fresh_gradients) || !first;
}

ValueId Writer::gradient_of(ValueId value) const {
  const auto it = of_activation_.find(value);
  return it == of_activation_.end() ? kAbsent : it->second;
}

bool Writer::holds_alone(ValueId value) const { return holders_.at(of_activation_.at(value)) == 1; }

void Writer::hold(ValueId value, ValueId gradient) {
  release(value);
  of_activation_[value] = gradient;
  ++holders_[gradient];
}

void Writer::release(ValueId value) {
  const auto it = of_activation_.find(value);
  if (it == of_activation_.end()) return;
  --holders_[it->second];
  of_activation_.erase(it);
}

}  // namespace redline::program
