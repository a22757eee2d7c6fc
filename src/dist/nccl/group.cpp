// Ranks on cards over NCCL. Everything is queued on the stream that is given, so programs can be captured. NCCL adds in
// an order of its own: a run repeats its bits with the same cards and library, and all_reduce and reduce_shards may
// differ.
#include "dist/group.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/shards.h"
#include "device/cuda/handles.h"
#include "device/device.h"
#include "dist/control.h"
#include "dist/nccl/casts.h"

namespace redline::dist {
namespace {

constexpr std::string_view kChannel = "nccl";
// A rank that died is seen by NCCL and by the control thread; the control thread knows which one it was.
constexpr auto kPoll = std::chrono::milliseconds(200);
constexpr auto kForControl = std::chrono::seconds(2);

// NCCL's functions, loaded at run time: the program also starts where the library is missing.
struct NcclLibrary {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&::ncclCommSplit) comm_split = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclReduce) reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;

  std::string problem;  // why nothing is there; empty: all of it is
  std::string version;  // "2.28.9"
};

NcclLibrary load_nccl() {
  NcclLibrary lib;
  void* const handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const error = ::dlerror();
    lib.problem = fmt::format("libnccl.so.2 could not be loaded ({})", error ? error : "no reason was given");
    return lib;
  }
  const auto find = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (!function && lib.problem.empty()) lib.problem = fmt::format("libnccl.so.2 has no {}", name);
  };
  find(lib.get_version, "ncclGetVersion");
  find(lib.get_unique_id, "ncclGetUniqueId");
  find(lib.comm_init_rank, "ncclCommInitRank");
  find(lib.comm_split, "ncclCommSplit");
  find(lib.comm_abort, "ncclCommAbort");
  find(lib.comm_get_async_error, "ncclCommGetAsyncError");
  find(lib.get_error_string, "ncclGetErrorString");
  find(lib.get_last_error, "ncclGetLastError");
  find(lib.group_start, "ncclGroupStart");
  find(lib.group_end, "ncclGroupEnd");
  find(lib.all_reduce, "ncclAllReduce");
  find(lib.reduce, "ncclReduce");
  find(lib.broadcast, "ncclBroadcast");
  find(lib.send, "ncclSend");
  find(lib.recv, "ncclRecv");
  int code = 0;
  if (lib.problem.empty() && lib.get_version(&code) == ncclSuccess)
    lib.version = fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  return lib;
}

// Loaded when it is first asked for.
const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load_nccl();
  return library;
}

std::string in_words(ncclResult_t result, ncclComm_t comm) {
  const NcclLibrary& lib = nccl_library();
  const char* const last = lib.get_last_error(comm);
  return fmt::format("{}{}", lib.get_error_string(result), last && *last ? fmt::format(" ({})", last) : "");
}

class NcclGroup final : public Group {
 public:
  NcclGroup(Control& control, ncclComm_t comm)
      : control_(control), lib_(nccl_library()), comms_{{{ranks(), 1}, comm}}, watcher_([this] { watch(); }) {}

  ~NcclGroup() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    closes_.notify_all();
    watcher_.join();
    for (const auto& [members, comm] : comms_)
      if (members != all()) lib_.comm_abort(comm);  // waits for no other rank
    lib_.comm_abort(comms_.at(all()));
  }

  int rank() const override { return control_.place().rank; }
  int ranks() const override { return control_.place().ranks; }
  std::string engine() const override { return "NCCL " + lib_.version; }

  void run(const AllReduce<Tensor>& op, void* on) override {
    const auto stream = begin(on);
    const ncclComm_t comm = comm_of(stream, ranks() / op.apart, op.apart);
    if (!op.data.present()) return;
    const std::int64_t n = op.data.elements();
    if (op.wire.present()) {
      REDLINE_CHECK(op.data.dtype == DType::f32 && op.wire.dtype == DType::bf16, "all_reduce: f32 data travel as bf16");
      cast_to_bf16(op.data.f32(), op.wire.data, n, stream);
      check(lib_.all_reduce(op.wire.data, op.wire.data, size(n), ncclBfloat16, ncclSum, comm, stream), "ncclAllReduce");
      return cast_from_bf16(op.wire.data, op.data.f32(), n, stream);
    }
    REDLINE_CHECK(op.data.dtype == DType::f32 || op.data.dtype == DType::f64, "all_reduce: {} cannot be added",
                  name_of(op.data.dtype));
    const ncclDataType_t type = op.data.dtype == DType::f64 ? ncclFloat64 : ncclFloat32;
    check(lib_.all_reduce(op.data.data, op.data.data, size(n), type, op.largest ? ncclMax : ncclSum, comm, stream),
          "ncclAllReduce");
  }

  void run(const ReduceShards<Tensor>& op, void* on) override {
    const auto stream = begin(on);
    const ncclComm_t comm = comm_of(stream, op.shards.ranks);
    const int own_number = rank() % op.shards.ranks;
    REDLINE_CHECK(op.data.dtype == DType::f32, "reduce_shards: {} cannot be added", name_of(op.data.dtype));
    float* const data = op.data.f32();
    const bool bf16 = op.wire.present();
    if (bf16) cast_to_bf16(data, op.wire.data, op.data.elements(), stream);
    const Range own = part_of(op, own_number);
    REDLINE_CHECK(op.in_place || op.shard.elements() == own.elements(),
                  "reduce_shards: a shard of {} elements for a part of {}", op.shard.elements(), own.elements());
    check(lib_.group_start(), "ncclGroupStart");
    for (int owner = 0; owner < op.shards.ranks; ++owner) {
      const Range part = part_of(op, owner);
      if (part.empty()) continue;
      void* const from = bf16 ? static_cast<void*>(op.wire.as<std::uint16_t>() + part.begin) : data + part.begin;
      // The sum goes straight where it belongs, unless something is to be done with it there.
      const bool straight = owner == own_number && !bf16 && !op.in_place && !op.accumulate;
      check(lib_.reduce(from, straight ? op.shard.data : from, size(part.elements()), bf16 ? ncclBfloat16 : ncclFloat32,
                        ncclSum, owner, comm, stream),
            "ncclReduce");
    }
    check(lib_.group_end(), "ncclGroupEnd");
    if (own.empty()) return;
    float* const to = op.in_place ? data + own.begin : op.shard.f32();
    if (bf16) {
      const std::uint16_t* const sum = op.wire.as<std::uint16_t>() + own.begin;
      (op.accumulate ? add_from_bf16 : cast_from_bf16)(sum, to, own.elements(), stream);
    } else if (op.accumulate) {
      add(data + own.begin, to, own.elements(), stream);
    }
  }

  void run(const GatherShards<Tensor>& op, void* on) override {
    const auto stream = begin(on);
    const ncclComm_t comm = comm_of(stream, op.shards.ranks);
    const auto bytes = static_cast<std::int64_t>(size_of(op.data.dtype));
    check(lib_.group_start(), "ncclGroupStart");
    for (int owner = 0; owner < op.shards.ranks; ++owner) {
      const Range part = part_of(op, owner);
      if (part.empty()) continue;
      std::byte* const to = op.data.as<std::byte>() + part.begin * bytes;
      const bool from_shard = owner == rank() % op.shards.ranks && !op.in_place;
      REDLINE_CHECK(!from_shard || op.shard.bytes() == part.elements() * bytes,
                    "gather_shards: a shard of {} bytes for a part of {}", op.shard.bytes(), part.elements() * bytes);
      check(lib_.broadcast(from_shard ? op.shard.data : to, to, size(part.elements() * bytes), ncclUint8, owner, comm,
                           stream),
            "ncclBroadcast");
    }
    check(lib_.group_end(), "ncclGroupEnd");
  }

  void run(const AllToAll<Tensor>& op, void* on) override {
    const auto stream = begin(on);
    const ncclComm_t comm = comms_.at(all());
    const int first = rank() / op.among * op.among;
    const std::int64_t block = op.from.bytes() / op.among;
    check(lib_.group_start(), "ncclGroupStart");
    for (int r = 0; r < op.among; ++r) {
      const std::int64_t at = r * block;
      check(lib_.send(op.from.as<std::byte>() + at, size(block), ncclUint8, first + r, comm, stream), "ncclSend");
      check(lib_.recv(op.to.as<std::byte>() + at, size(block), ncclUint8, first + r, comm, stream), "ncclRecv");
    }
    check(lib_.group_end(), "ncclGroupEnd");
  }

 private:
  using Members = std::pair<int, int>;  // so many ranks, so far apart
  Members all() const { return {ranks(), 1}; }

  // The communicator of a collective. All ranks make it at their first collective of the kind, which is never captured:
  // a program's first run is queued node by node.
  ncclComm_t comm_of(cudaStream_t stream, int many, int apart = 1) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto made = comms_.find({many, apart}); made != comms_.end()) return made->second;
    }
    REDLINE_CHECK(many > 0 && ranks() % (many * apart) == 0, "a collective of {} ranks of {}, {} apart", many, ranks(),
                  apart);
    REDLINE_CUDA(cudaStreamSynchronize(stream));  // nothing of the ranks may be under way
    ncclComm_t comm = nullptr;
    check(lib_.comm_split(comms_.at(all()), apart > 1 ? rank() % apart : rank() / many, rank(), &comm, nullptr),
          "ncclCommSplit");
    const std::lock_guard lock(mutex_);
    return comms_[{many, apart}] = comm;
  }

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  template <class Op>
  static Range part_of(const Op& op, int owner) {
    const Range part = owned_part(op.shards, owner, op.begin, op.begin + op.data.elements());
    return {part.begin - op.begin, part.end - op.begin};
  }
  cudaStream_t begin(void* stream) {
    control_.collective(++collectives_);
    return static_cast<cudaStream_t>(stream);
  }
  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess && result != ncclInProgress)
      fail_machine("rank {}: {}: {}", rank(), call, in_words(result, comms_.at(all())));
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!closes_.wait_for(lock, kPoll, [&] { return closing_; })) {
      for (const auto& [members, comm] : comms_) {
        ncclResult_t state = ncclSuccess;
        if (lib_.comm_get_async_error(comm, &state) != ncclSuccess || state == ncclSuccess || state == ncclInProgress)
          continue;
        if (closes_.wait_for(lock, kForControl, [&] { return closing_; })) return;
        lock.unlock();
        return control_.fail(fmt::format("NCCL failed: {}", in_words(state, comm)), 1);
      }
    }
  }

  Control& control_;
  const NcclLibrary& lib_;
  std::mutex mutex_;  // of the next, which one thread enlarges and another reads, and of `closing_`
  std::map<Members, ncclComm_t> comms_;
  std::int64_t collectives_ = 0;
  std::condition_variable closes_;
  bool closing_ = false;
  std::thread watcher_;  // the last: it uses all of the above
};

// NCCL takes two ranks on one card only where it believes them on two machines (NCCL_HOSTID).
void refuse_shared_cards(const device::Device& card, Control& control) {
  const char* const host_id = std::getenv("NCCL_HOSTID");
  const std::string host = host_id ? host_id : control.place().host;
  std::map<std::string, int> seen;
  int rank = 0;
  for (const std::string& where : control.all_gather(host + " " + card.bus_id(), kChannel)) {
    const auto [it, is_new] = seen.emplace(where, rank);
    if (!is_new)
      fail_user(
          "ranks {} and {} have the same card ({}, {}); start one rank a card, or redline launch with --share-card",
          it->second, rank, where, card.name());
    ++rank;
  }
}

}  // namespace

EngineStatus nccl_status() {
  const NcclLibrary& lib = nccl_library();
  return {true, lib.version.empty() ? "" : "NCCL " + lib.version, lib.problem};
}

std::unique_ptr<Group> open_nccl(device::Device& card, Control& control) {
  const NcclLibrary& lib = nccl_library();
  const Place& place = control.place();
  // All ranks end with the same sentence: none of them waits inside NCCL for one that cannot come.
  for (const std::string& problem : control.all_gather(lib.problem, kChannel))
    if (!problem.empty()) fail_user("several ranks on cards need NCCL: {}", problem);
  refuse_shared_cards(card, control);
  ncclUniqueId id{};
  const auto check = [&](ncclResult_t result, const char* call) {
    if (result != ncclSuccess)
      fail_machine("rank {} on {}: {}: {}", place.rank, place.host, call, in_words(result, nullptr));
  };
  if (place.rank == 0) check(lib.get_unique_id(&id), "ncclGetUniqueId");
  const std::string sent = control.broadcast({id.internal, sizeof id.internal}, kChannel);
  REDLINE_CHECK(sent.size() == sizeof id.internal, "an id of {} bytes", sent.size());
  std::memcpy(id.internal, sent.data(), sent.size());
  ncclComm_t comm = nullptr;
  check(lib.comm_init_rank(&comm, place.ranks, id, place.rank), "ncclCommInitRank");
  return std::make_unique<NcclGroup>(control, comm);
}

}  // namespace redline::dist
