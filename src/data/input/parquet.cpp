// A few threads decode row groups ahead, and the reader gets the rows as if one thread had done it all.
#include "data/input/parquet.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/input/byte_stream.h"

namespace redline::data {
namespace {

// The two places where the module may lie, and the sentence where it does not.

constexpr const char* kModule = "redline-parquet.so";

ParquetLibrary load() {
  ParquetLibrary library;
  std::error_code error;
  const Path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error) fail_machine("/proc/self/exe: {}", error.message());
  const std::array<Path, 2> places = {folder / kModule, (folder / ".." / "lib/redline" / kModule).lexically_normal()};
  for (const Path& place : places) {
    if (!std::filesystem::exists(place, error)) continue;
    void* const handle = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* const reason = ::dlerror();
      library.problem = fmt::format("{} could not be loaded ({})", kModule, reason ? reason : "no reason was given");
      return library;
    }
    const auto entry = reinterpret_cast<RedlineParquetEntry>(::dlsym(handle, "redline_parquet"));
    const RedlineParquet* const functions = entry ? entry() : nullptr;
    if (functions && functions->interface == kParquetInterface) {
      library.functions = functions;
    } else {
      library.problem = fmt::format("{} is of another version of redline", place.string());
    }
    return library;
  }
  library.problem = fmt::format("{} is neither in {} nor in {}", kModule, places[0].parent_path().string(),
                                places[1].parent_path().string());
  return library;
}

// A name as a shell takes it.
std::string in_shell(const Path& path) {
  std::string name = path.string();
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
  if (!name.empty() && name.find_first_not_of(kPlain) == name.npos) return name;
  std::string out = "'";
  for (const char c : name) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

}  // namespace

bool is_parquet(const Path& path) { return ending_of(path) == ".parquet"; }

const ParquetLibrary& parquet_library() {
  static const ParquetLibrary library = load();
  return library;
}

const RedlineParquet& require_parquet_library(const Path& file, const std::string& column) {
  const ParquetLibrary& library = parquet_library();
  if (library.functions) return *library.functions;
  const Path lines = Path(file).replace_extension(".jsonl").filename();
  fail_user(
      "{}: Parquet is read by a module, and {}; build redline where Arrow's C++ library or the Python package "
      "pyarrow is found, or write the file as .jsonl: python3 -c 'import json, sys, pyarrow.parquet as p; "
      "[print(json.dumps(r)) for b in p.ParquetFile(sys.argv[1]).iter_batches(columns=[sys.argv[2]]) for r in "
      "b.to_pylist()]' {} {} > {}",
      file.string(), library.problem, in_shell(file), in_shell(column), in_shell(lines));
}

namespace {

// Every thread takes the first row group that no other thread has, decodes it in parcels, and waits where it is too far
// ahead. The first group in line always has a thread, since groups are taken in their order.

// One thread decodes 1 GB/s of text or more, which some ten cores tokenize.
constexpr unsigned kMostThreads = 4;
constexpr std::int64_t kParcelBytes = 1 << 18, kParcelRows = 1024;
constexpr std::int64_t kMostAhead = std::int64_t{1} << 24, kLeastAhead = std::int64_t{1} << 20;  // bytes of a group

// Conversations are columns of lists, of which the module reads none; the error's text has the names of columns.
std::string conversations_hint(const Path& file, std::string_view columns) {
  for (const char* name : {"messages", "conversations", "prompt", "instruction"}) {
    const bool list = columns.find(fmt::format("\"{}.", name)) != columns.npos ||
                      columns.find(fmt::format("\"{}\" is a list", name)) != columns.npos;
    const bool pair = columns.find(fmt::format("\"{}\"", name)) != columns.npos &&
                      columns.find(name[0] == 'p' ? "\"completion\"" : "\"output\"") != columns.npos;
    if (!list && !pair) continue;
    return fmt::format(
        "; conversations (\"{}\") are read from .jsonl, with data.chat or --chat, and this writes them so: python3 -c "
        "'import json, sys, pyarrow.parquet as p; [print(json.dumps(r, default=str)) for b in "
        "p.ParquetFile(sys.argv[1]).iter_batches() for r in b.to_pylist()]' {} > {}",
        name, in_shell(file), in_shell(Path(file).replace_extension(".jsonl").filename()));
  }
  return {};
}

[[noreturn]] void fail_parquet(const Path& file, const std::string& where, const RedlineParquetError& error,
                               const InputFormat& format) {
  switch (error.problem) {
    case kParquetNoColumn:
    case kParquetNoText:
      throw NoSuchField(fmt::format("{}: {}; name {} that holds text with {}{}", where, error.text,
                                    error.problem == kParquetNoText ? "one" : "the one", format.text_field_key,
                                    conversations_hint(file, error.text)));
    case kParquetSystem: fail_machine("{}: cannot read: {}", where, error.text);
    case kParquetMemory: throw std::bad_alloc();
    case kParquetBadFile: break;
  }
  fail_user("{}: damaged: {}; bring the file back whole", where, error.text);
}

// Both ends of the file, which tell better than its footer what is wrong.
void check_ends(const Path& path) {
  constexpr std::uint64_t kMagic = 4, kSmallest = 12;
  const std::uint64_t size = real_files().size(path);
  std::string first(kMagic, ' '), last(kMagic, ' ');
  if (size >= kMagic) {
    const InputFile file(path);
    file.read(0, std::as_writable_bytes(std::span(first)));
    file.read(size - kMagic, std::as_writable_bytes(std::span(last)));
  }
  if (last == "PARE") fail_user("{}: it is encrypted; write it without", path.string());
  if (first != "PAR1")
    fail_user("{}: this is not a Parquet file; give it the name of what it is, or leave it out", path.string());
  if (last != "PAR1" || size < kSmallest)
    fail_user("{}: it is cut short at byte {}; bring it back whole", path.string(), size);
}

// Some rows of a group, in their order.
struct Parcel {
  std::string bytes;
  std::vector<std::int64_t> ends;
  std::vector<bool> null;
  std::int64_t too_long = 0;  // as in a TextBlock
};

struct Group {
  std::int64_t number = 0;
  std::int64_t from = 0;  // rows of it to pass over
  bool taken = false, done = false;
  std::deque<Parcel> parcels;
  std::int64_t bytes = 0;  // of them
  std::exception_ptr failure;
};

}  // namespace

struct ParquetRows::Impl {
  const Path path;
  const InputFormat& format;
  const RedlineParquet& parquet;
  std::unique_ptr<RedlineParquetFile, void (*)(RedlineParquetFile*)> file;
  std::vector<std::int64_t> first_row{0};  // of each group, and after the last
  const std::int64_t most_ahead;

  // The reader's own.
  std::int64_t row = 0;
  Parcel current;
  std::size_t given = 0;      // rows of it
  bool running_on = false;    // there was a next() since the last seek()
  std::exception_ptr broken;  // after what was given

  // Shared with the threads.
  std::mutex mutex;
  std::condition_variable work, room, ready;
  std::deque<std::shared_ptr<Group>> line;  // groups in their order from the reader's on, one for each thread
  std::int64_t next_group = 0;              // to come into line
  bool stopping = false;
  std::vector<std::thread> threads;

  Impl(const Path& p, const InputFormat& f)
      : path(p),
        format(f),
        parquet(require_parquet_library(p, f.text_field)),
        file(nullptr, parquet.close),
        most_ahead(std::clamp(f.longest_held(), kLeastAhead, kMostAhead)) {
    check_ends(path);
    RedlineParquetError error{};
    file.reset(parquet.open(path.c_str(), format.text_field.c_str(), &error));
    if (!file) fail_parquet(path, path.string(), error, format);
    for (std::int64_t g = 0; g < parquet.groups(file.get()); ++g)
      first_row.push_back(first_row.back() + parquet.rows(file.get(), g));
  }
  ~Impl() { stop(); }

  std::int64_t groups() const { return static_cast<std::int64_t>(first_row.size()) - 1; }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
    room.notify_all();
    for (std::thread& t : threads) t.join();
    threads.clear();
    line.clear();
    stopping = false;
    running_on = false;
  }

  // One thread at first: whoever asks for a row here and there needs no more than its group.
  void start() {
    const auto wanted = running_on ? std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads) : 1u;
    running_on = true;
    try {
      while (threads.size() < wanted) threads.emplace_back([this] { decode_groups(); });
    } catch (const std::system_error& e) {
      fail_machine("cannot start a thread that reads {}: {}", path.string(), e.what());
    }
    const std::lock_guard lock(mutex);
    line_up();
  }
  void line_up() {
    for (; line.size() < threads.size() && next_group < groups(); ++next_group) {
      auto group = std::make_shared<Group>();
      group->number = next_group;
      group->from = std::max<std::int64_t>(row - first_row[static_cast<std::size_t>(next_group)], 0);
      line.push_back(std::move(group));
    }
    work.notify_all();
  }

  void decode_groups() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      const auto it = std::ranges::find_if(line, [](const auto& group) { return !group->taken; });
      if (it == line.end()) {
        work.wait(lock);
        continue;
      }
      const std::shared_ptr<Group> group = *it;
      group->taken = true;
      lock.unlock();
      try {
        decode(*group);
      } catch (...) {
        group->failure = std::current_exception();
      }
      lock.lock();
      group->done = true;
      ready.notify_all();
    }
  }

  void decode(Group& group) {
    const auto where = [&] { return fmt::format("{}: row group {}", path.string(), group.number); };
    const auto fail_rows = [&] { fail_user("{}: damaged: it has another number of rows than it says", where()); };
    RedlineParquetError error{};
    const std::unique_ptr<RedlineParquetGroup, void (*)(RedlineParquetGroup*)> reader(
        parquet.open_group(file.get(), group.number, group.from, &error), parquet.close_group);
    if (!reader) fail_parquet(path, where(), error, format);
    std::int64_t missing = parquet.rows(file.get(), group.number) - group.from;
    Parcel parcel;
    for (;;) {
      const RedlineParquetRow* rows = nullptr;
      const std::int64_t count = parquet.next(reader.get(), &rows, &error);
      if (count == 0) break;
      if (count > missing) fail_rows();
      missing -= count;
      for (std::int64_t i = 0; i < count; ++i)
        if (!append(group, parcel, rows[i])) return;
      if (count < 0) {
        if (!hand_over(group, parcel)) return;
        fail_parquet(path, where(), error, format);
      }
    }
    if (!hand_over(group, parcel)) return;
    if (missing != 0) fail_rows();
  }

  // False: it is not wanted any more.
  bool append(Group& group, Parcel& parcel, const RedlineParquetRow& r) {
    const bool too_long = r.size > format.longest_held();
    const bool full = static_cast<std::int64_t>(parcel.bytes.size()) + r.size > kParcelBytes ||
                      static_cast<std::int64_t>(parcel.ends.size()) >= kParcelRows;
    if ((too_long || full) && !hand_over(group, parcel)) return false;
    parcel.too_long = too_long ? r.size : 0;
    const auto size = static_cast<std::size_t>(r.size);
    if (r.bytes) parcel.bytes.append(r.bytes, too_long ? std::min(size, kShownOfTooLong) : size);
    parcel.ends.push_back(static_cast<std::int64_t>(parcel.bytes.size()));
    parcel.null.push_back(!r.bytes);
    return !too_long || hand_over(group, parcel);
  }

  bool hand_over(Group& group, Parcel& parcel) {
    if (parcel.ends.empty()) return true;
    const auto bytes = static_cast<std::int64_t>(parcel.bytes.size() + parcel.ends.size() * sizeof(std::int64_t));
    std::unique_lock lock(mutex);
    room.wait(lock, [&] { return stopping || group.bytes == 0 || group.bytes + bytes <= most_ahead; });
    if (stopping) return false;
    group.bytes += bytes;
    group.parcels.push_back(std::exchange(parcel, {}));
    lock.unlock();
    ready.notify_one();
    return true;
  }

  // Makes `current` hold a row that was not given; false at the end of the file.
  bool fetch() {
    while (given == current.ends.size()) {
      std::unique_lock lock(mutex);
      if (line.empty()) return false;
      Group& group = *line.front();
      ready.wait(lock, [&] { return group.done || !group.parcels.empty(); });
      if (group.parcels.empty()) {
        const std::exception_ptr failure = group.failure;
        line.pop_front();
        if (failure) std::rethrow_exception(failure);
        line_up();
        continue;
      }
      current = std::move(group.parcels.front());
      given = 0;
      group.parcels.pop_front();
      group.bytes -= static_cast<std::int64_t>(current.bytes.size() + current.ends.size() * sizeof(std::int64_t));
      lock.unlock();
      room.notify_all();
    }
    return true;
  }

  bool next(TextBlock& block, std::int64_t target, std::int64_t most) {
    if (broken) std::rethrow_exception(std::exchange(broken, nullptr));
    start();
    block.rows = true;
    block.offset = row;
    block.line = 0;
    const auto size = [&] { return static_cast<std::int64_t>(block.bytes.size()); };
    while (block.documents() < most && (block.ends.empty() || size() < target)) {
      try {
        if (!fetch()) break;
      } catch (const std::exception&) {
        if (block.ends.empty()) throw;
        broken = std::current_exception();  // after the rows that came before it
        break;
      }
      if (current.too_long > 0 && !block.ends.empty()) break;
      const std::int64_t begin = given == 0 ? 0 : current.ends[given - 1], end = current.ends[given];
      if (block.bytes.empty() && current.ends.size() == 1)
        block.bytes = std::move(current.bytes);
      else
        block.bytes.append(current.bytes, static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      block.ends.push_back(size());
      block.null.push_back(current.null[given]);
      block.too_long = current.too_long;
      ++given;
      ++row;
      if (block.too_long > 0) break;
    }
    return !block.ends.empty();
  }

  void seek(std::int64_t to) {
    REDLINE_CHECK(to >= 0 && to <= first_row.back(), "no row {} of {}", to, first_row.back());
    const auto group_of = [&](std::int64_t r) {
      return std::upper_bound(first_row.begin(), first_row.end() - 1, r) - first_row.begin() - 1;
    };
    if (!broken && !line.empty() && to >= row && group_of(to) == line.front()->number) {
      while (row < to && fetch()) {
        const auto passed = std::min<std::int64_t>(to - row, static_cast<std::int64_t>(current.ends.size() - given));
        given += static_cast<std::size_t>(passed);
        row += passed;
      }
      return;
    }
    stop();
    current = {};
    given = 0;
    broken = nullptr;
    row = to;
    next_group = std::max<std::int64_t>(group_of(to), 0);  // -1: there is none
  }
};

ParquetRows::ParquetRows(const Path& path, const InputFormat& format) : impl_(std::make_unique<Impl>(path, format)) {}
ParquetRows::~ParquetRows() = default;
std::int64_t ParquetRows::rows() const { return impl_->first_row.back(); }
std::int64_t ParquetRows::row() const { return impl_->row; }
void ParquetRows::seek(std::int64_t row) { impl_->seek(row); }
bool ParquetRows::next(TextBlock& block, std::int64_t target_bytes, std::int64_t most_documents) {
  return impl_->next(block, target_bytes, most_documents);
}

}  // namespace redline::data
