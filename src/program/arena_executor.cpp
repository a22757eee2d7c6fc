// Allocates the arena, binds every op to it, and moves values between it and the host.
#include "program/arena_executor.h"

namespace redline::program {

ArenaExecutor::ArenaExecutor(const ProgramSet& set, device::Device& device)
    : set_(set), device_(device), arena_(device.allocate(set.memory.total)) {
  // Persistent memory starts at zero: moments do, and the gaps between parameters must stay there.
  if (!arena_->is_zero()) device_.fill(arena_->data(), 0, set_.memory.persistent);
  for (const Constant& c : set_.constants) write(c.value, c.data.data(), set_.at(c.value).bytes());
  for (const Program& program : set_.programs) {
    std::vector<BoundOp>& bound = bound_.emplace_back();
    for (const Node& node : program.nodes) bound.push_back(bind(node.op));
  }
}

Tensor ArenaExecutor::tensor(ValueId id) const {
  const std::int64_t offset = set_.memory.offsets[static_cast<std::size_t>(id.index)];
  REDLINE_CHECK(offset >= 0, "{} has no memory", set_.at(id).full_name());
  return {arena_->data() + offset, set_.at(id).dtype, set_.at(id).shape};
}

void ArenaExecutor::write(ValueId id, const void* host, std::int64_t bytes) {
  check_size(id, bytes);
  device_.copy_in(tensor(id).data, host, bytes);
}

void ArenaExecutor::write(ValueId id, const void* host, std::int64_t bytes, std::int64_t offset) {
  REDLINE_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= set_.at(id).bytes(), "bytes {} to {} of {}", offset,
                offset + bytes, set_.at(id).name);
  device_.copy_in(tensor(id).as<std::byte>() + offset, host, bytes);
}

void ArenaExecutor::read(ValueId id, void* host, std::int64_t bytes) {
  check_size(id, bytes);
  device_.copy_out(host, tensor(id).data, bytes);
}

void ArenaExecutor::post(std::span<const ValueId> ids) {
  std::int64_t bytes = 0;
  pieces_.clear();
  for (const ValueId id : ids) {
    pieces_.push_back({tensor(id).data, set_.at(id).bytes()});
    bytes += set_.at(id).bytes();
  }
  if (!mailbox_) mailbox_ = device_.make_mailbox(bytes);
  mailbox_->post(pieces_);
}

void ArenaExecutor::take(void* host) {
  REDLINE_CHECK(mailbox_, "nothing was posted");
  mailbox_->take(host);
}

void ArenaExecutor::clear(ValueId id) { device_.fill(tensor(id).data, 0, set_.at(id).bytes()); }

void ArenaExecutor::poison_transients() {
  device_.fill(arena_->data() + set_.memory.persistent, 0xFF, set_.memory.total - set_.memory.persistent);
}

std::size_t ArenaExecutor::index_of(std::string_view program) const {
  return static_cast<std::size_t>(&set_.find(program) - set_.programs.data());
}

BoundOp ArenaExecutor::bind(const Op& op) const {
  return std::visit(
      [&](const auto& o) -> BoundOp {
        return o.map([&](std::string_view, ValueId id, Access) { return id.present() ? tensor(id) : Tensor{}; });
      },
      op);
}

void ArenaExecutor::check_size(ValueId id, std::int64_t bytes) const {
  REDLINE_CHECK(bytes == set_.at(id).bytes(), "{} holds {} bytes, not {}", set_.at(id).name, set_.at(id).bytes(),
                bytes);
}

}  // namespace redline::program
