// Raw bytes through POSIX read (a mapped file that somebody truncates would kill the process), inflate from zlib and
// zstd's streaming decoder. Kinds of files: one row a format; then statistics of what no row knows.
#include "data/input/byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

constexpr std::size_t kInputBuffer = std::size_t{1} << 17;
constexpr std::int64_t kUsualWindow = std::int64_t{1} << 27, kLargestWindow = std::int64_t{1} << 31;

bool has_gzip_magic(std::span<const char> b) { return b.size() >= 2 && b[0] == '\x1f' && b[1] == '\x8b'; }
bool has_zstd_magic(std::span<const char> b) {
  if (b.size() < 4) return false;
  const bool frame = std::memcmp(b.data(), "\x28\xb5\x2f\xfd", 4) == 0;
  const bool skippable =
      (static_cast<unsigned char>(b[0]) & 0xF0) == 0x50 && std::memcmp(&b[1], "\x2a\x4d\x18", 3) == 0;
  return frame || skippable;
}

class RawFile final : public ByteStream {
 public:
  explicit RawFile(const Path& path) : path_(path) {
    do fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0)
      fail_user("{}: cannot open: {}; give this user the right to read it, or name another file", path_.string(),
                std::generic_category().message(errno));
#ifdef POSIX_FADV_SEQUENTIAL
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
  }
  ~RawFile() override { ::close(fd_); }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  std::size_t read(std::span<char> to) override {
    std::size_t filled = 0;
    while (filled < to.size()) {
      const ssize_t got = ::read(fd_, to.data() + filled, to.size() - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        fail_machine("{}: byte {}: cannot read: {}", path_.string(), consumed_, std::generic_category().message(errno));
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
      consumed_ += got;
    }
    return filled;
  }
  std::int64_t consumed() const override { return consumed_; }
  bool seeks() const override { return true; }
  void seek(std::int64_t offset) override {
    if (::lseek(fd_, offset, SEEK_SET) != offset)
      fail_machine("{}: cannot go to byte {}: {}", path_.string(), offset, std::generic_category().message(errno));
    consumed_ = offset;
  }

 private:
  Path path_;
  int fd_ = -1;
  std::int64_t consumed_ = 0;
};

class RawMemory final : public ByteStream {
 public:
  explicit RawMemory(std::span<const char> bytes) : bytes_(bytes) {}
  std::size_t read(std::span<char> to) override {
    const std::size_t n = std::min(to.size(), bytes_.size() - at_);
    std::copy_n(bytes_.data() + at_, n, to.data());
    at_ += n;
    return n;
  }
  std::int64_t consumed() const override { return static_cast<std::int64_t>(at_); }
  bool seeks() const override { return true; }
  void seek(std::int64_t offset) override { at_ = std::min(static_cast<std::size_t>(offset), bytes_.size()); }

 private:
  std::span<const char> bytes_;
  std::size_t at_ = 0;
};

// Shared by both decompressors: a buffer of compressed bytes and the position of its first unread one.
class Compressed : public ByteStream {
 public:
  Compressed(std::unique_ptr<ByteStream> raw, std::string name)
      : raw_(std::move(raw)), name_(std::move(name)), buffer_(kInputBuffer) {}
  std::int64_t consumed() const override { return position(); }

 protected:
  // More input when there is none left; false at the end of the file.
  bool refill() {
    if (!input_.empty()) return true;
    const bool first = raw_->consumed() == 0;
    input_ = std::span(buffer_).first(raw_->read(buffer_));
    if (first) check_magic(input_);
    return !input_.empty();
  }
  void take(std::size_t n) { input_ = input_.subspan(n); }
  std::int64_t position() const { return raw_->consumed() - static_cast<std::int64_t>(input_.size()); }
  [[noreturn]] void fail(std::string_view reason) const {
    fail_user("{}: byte {} of the compressed file: {}", name_, position(), reason);
  }
  [[noreturn]] void fail_truncated(std::int64_t produced) const {
    fail_user("{}: the archive is cut short at byte {}, after {} bytes of text", name_, position(), produced);
  }
  virtual void check_magic(std::span<const char> start) const = 0;

  std::unique_ptr<ByteStream> raw_;
  std::string name_;
  std::vector<char> buffer_;
  std::span<char> input_;
  std::int64_t produced_ = 0;
};

// Members of a gzip file may follow each other (pigz, cat a.gz b.gz), and zeros may pad the end (tapes).
class Gzip final : public Compressed {
 public:
  Gzip(std::unique_ptr<ByteStream> raw, std::string name) : Compressed(std::move(raw), std::move(name)) {
    if (inflateInit2(&z_, 15 + 16) != Z_OK) throw std::bad_alloc();  // 16: gzip alone
  }
  ~Gzip() override { inflateEnd(&z_); }

  std::size_t read(std::span<char> to) override {
    std::size_t filled = 0;
    while (filled < to.size()) {
      if (!inside_ && !begin_member()) break;
      if (!refill()) fail_truncated(produced_);
      z_.next_in = reinterpret_cast<Bytef*>(input_.data());
      z_.avail_in = static_cast<uInt>(input_.size());
      z_.next_out = reinterpret_cast<Bytef*>(to.data() + filled);
      const std::size_t room = std::min<std::size_t>(to.size() - filled, std::numeric_limits<uInt>::max());
      z_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&z_, Z_NO_FLUSH);
      take(input_.size() - z_.avail_in);
      filled += room - z_.avail_out;
      produced_ += static_cast<std::int64_t>(room - z_.avail_out);
      if (result == Z_STREAM_END) {
        inside_ = false;
      } else if (result == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        fail(fmt::format("damaged gzip data: {}", z_.msg ? z_.msg : "the stream is broken"));
      }
    }
    return filled;
  }

 private:
  bool begin_member() {
    if (members_ > 0) {
      while (refill() && input_[0] == '\0') take(1);
      if (!refill()) return false;
      if (input_[0] != '\x1f') fail("what follows the end of the gzip data is not gzip");
      inflateReset(&z_);
    }
    ++members_;
    return inside_ = true;
  }
  void check_magic(std::span<const char> start) const override {
    if (!start.empty() && !has_gzip_magic(start))
      fail_user("{}: the name says gzip, but the contents are not gzip; if it is plain text, drop the .gz", name_);
  }

  z_stream z_{};
  bool inside_ = false;
  std::int64_t members_ = 0;
};

class Zstd final : public Compressed {
 public:
  Zstd(std::unique_ptr<ByteStream> raw, std::string name, std::int64_t window)
      : Compressed(std::move(raw), std::move(name)), context_(ZSTD_createDCtx()), window_(window) {
    if (!context_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, std::bit_width(static_cast<std::uint64_t>(window)) - 1);
  }
  ~Zstd() override { ZSTD_freeDCtx(context_); }

  std::size_t read(std::span<char> to) override {
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    while (out.pos < out.size) {
      const bool more = refill();
      if (!more && !inside_) break;
      ZSTD_inBuffer in{input_.data(), input_.size(), 0};
      const std::size_t before = out.pos;
      const std::size_t hint = ZSTD_decompressStream(context_, &out, &in);
      take(in.pos);
      produced_ += static_cast<std::int64_t>(out.pos - before);
      if (ZSTD_isError(hint)) fail_with(hint);
      inside_ = hint != 0;
      if (!more && inside_ && out.pos == before) fail_truncated(produced_);
    }
    return out.pos;
  }

 private:
  [[noreturn]] void fail_with(std::size_t error) const {
    const std::string_view reason = ZSTD_getErrorName(error);
    if (reason.find("too much memory") != reason.npos)
      fail(fmt::format("the zstd frame needs a window larger than {} MiB; compress it again without --long",
                       window_ >> 20));
    if (reason.find("llocation") != reason.npos) throw std::bad_alloc();
    fail(fmt::format("damaged zstd data: {}", reason));
  }
  void check_magic(std::span<const char> start) const override {
    if (!start.empty() && !has_zstd_magic(start))
      fail_user("{}: the name says zstd, but the contents are not zstd; if it is plain text, drop the .zst", name_);
  }

  ZSTD_DCtx* context_;
  std::int64_t window_;
  bool inside_ = false;
};

std::unique_ptr<ByteStream> decompress(std::unique_ptr<ByteStream> raw, const Path& name, std::int64_t bytes) {
  switch (compression_of(name)) {
    case Compression::gzip: return std::make_unique<Gzip>(std::move(raw), name.string());
    case Compression::zstd: return std::make_unique<Zstd>(std::move(raw), name.string(), zstd_window_limit(bytes));
    case Compression::none: break;
  }
  return raw;
}

using namespace std::string_view_literals;

struct Format {
  std::size_t at;
  std::string_view magic, name;
  std::string_view instead;  // empty: it holds no text that could be taken out
};

constexpr std::string_view kLines = ".to_json(OUT, orient=\"records\", lines=True) writes it as .jsonl";

constexpr Format kFormats[] = {
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", "pandas.read_hdf(FILE)"},
    {0, "\x1f\x8b"sv, "gzip", "give it a name that ends in .gz"},
    {0, "\x28\xb5\x2f\xfd"sv, "zstd", "give it a name that ends in .zst"},
    {0, "\xfd\x37zXZ\0"sv, "xz", "unpack it with unxz"},
    {0, "\x04\x22\x4d\x18"sv, "lz4", "unpack it with unlz4"},
    {0, "PK\x03\x04"sv, "a zip archive", "unpack it with unzip and name the text files in it"},
    {0, "7z\xbc\xaf\x27\x1c"sv, "a 7z archive", "unpack it and name the text files in it"},
    {257, "ustar"sv, "a tar archive", "unpack it with tar xf and name the text files in it"},
    {0, "\x93NUMPY"sv, "a NumPy array",
     "numpy.load(FILE).astype(\"uint16\").tofile(\"NAME.bin\") writes tokens that can be read"},
    {0, "%PDF-"sv, "a PDF", "pdftotext takes the text out"},
    {0, "SQLite format 3\0"sv, "an SQLite database", "write its text as .jsonl, one {\"text\": ...} a line"},
    {0, "\xff\xfe"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW makes it UTF-8"},
    {0, "\xfe\xff"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW makes it UTF-8"},
    {0, "\x7f\x45LF"sv, "an ELF program", ""},
    {0, "\xfe\xed\xfa\xce"sv, "a Mach-O program", ""},
    {0, "\xfe\xed\xfa\xcf"sv, "a Mach-O program", ""},
    {0, "\xce\xfa\xed\xfe"sv, "a Mach-O program", ""},
    {0, "\xcf\xfa\xed\xfe"sv, "a Mach-O program", ""},
    {0, "\xca\xfe\xba\xbe"sv, "a Mach-O program or a Java class", ""},
    {0, "\x89PNG"sv, "a PNG image", ""},
    {0, "\xff\xd8\xff"sv, "a JPEG image", ""},
    {0, "II*\0"sv, "a TIFF image", ""},
    {0, "MM\0*"sv, "a TIFF image", ""},
    {8, "WEBPVP8"sv, "a WebP image", ""},
    {5, "\0\0\0{\""sv, "the weights of a model (safetensors)", ""},
};

bool no_text(char c, std::string_view separator) {
  return (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) &&
         "\t\n\v\f\r\b\x1b"sv.find(c) == std::string_view::npos && separator.find(c) == separator.npos;
}

// Letters with which a text may begin as well: control characters follow them.
constexpr Format kLetters[] = {
    {0, "PAR1"sv, "a Parquet file", "give it a name that ends in .parquet, or pandas.read_parquet(FILE)"},
    {0, "ARROW1"sv, "an Arrow file", "pandas.read_feather(FILE)"},
    {0, "FEA1"sv, "a Feather file", "pandas.read_feather(FILE)"},
    {0, "BZh"sv, "bzip2", "unpack it with bunzip2"},
    {0, "MZ"sv, "a Windows program", ""},
    {0, "BM"sv, "a BMP image", ""},
    {0, "GIF8"sv, "a GIF image", ""},
    {4, "ftyp"sv, "a video or an image", ""},
    {0, "GGUF"sv, "the weights of a model (GGUF)", ""},
};
constexpr Format kArrowStream = {0, "\xff\xff\xff\xff"sv, "an Arrow stream", "datasets.Dataset.from_file(FILE)"};

const Format* known(std::string_view start) {
  const auto is = [&](const Format& f) { return start.substr(std::min(f.at, start.size())).starts_with(f.magic); };
  if (const auto it = std::ranges::find_if(kFormats, is); it != std::end(kFormats)) return it;
  // The size of what follows is a number below 65536.
  if (is(kArrowStream) && start.size() > 8 && start.substr(6, 2) == "\0\0"sv) return &kArrowStream;
  if (std::ranges::none_of(start.substr(0, 64), [](char c) { return no_text(c, ""); })) return nullptr;
  const auto it = std::ranges::find_if(kLetters, is);
  return it == std::end(kLetters) ? nullptr : it;
}

// Bytes of no character. A character that the sample's ends have cut counts for three at most.
std::size_t outside_utf8(std::string_view sample) {
  std::size_t bad = 0;
  while (!sample.empty()) {
    sample.remove_prefix(valid_utf8(sample));
    const std::size_t one = std::min<std::size_t>(sample.size(), 1);
    bad += one;
    sample.remove_prefix(one);
  }
  return bad;
}

}  // namespace

void ByteStream::seek(std::int64_t) { REDLINE_CHECK(false, "this stream only goes forward"); }

std::string ending_of(const Path& path) {
  std::string end = path.extension().string();
  for (char& c : end) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return end;
}

Compression compression_of(const Path& path) {
  const std::string end = ending_of(path);
  return end == ".gz" ? Compression::gzip : end == ".zst" ? Compression::zstd : Compression::none;
}

std::int64_t zstd_window_limit(std::int64_t file_bytes) {
  if (file_bytes <= kUsualWindow / 8) return kUsualWindow;
  if (file_bytes >= kLargestWindow / 8) return kLargestWindow;
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(file_bytes) * 8));
}

std::unique_ptr<ByteStream> open_byte_stream(const Path& path) {
  auto raw = std::make_unique<RawFile>(path);
  return decompress(std::move(raw), path, static_cast<std::int64_t>(real_files().size(path)));
}

std::unique_ptr<ByteStream> stream_of(std::span<const char> bytes, const Path& name) {
  return decompress(std::make_unique<RawMemory>(bytes), name, static_cast<std::int64_t>(bytes.size()));
}

std::string_view known_format(std::string_view start) {
  const Format* const format = known(start);
  return format && format->magic.size() >= 4 ? format->name : std::string_view();
}

std::string why_not_text(std::string_view start, std::string_view middle, std::string_view separator, bool any_bytes,
                         std::string_view bytes_setting) {
  const std::string for_bytes = fmt::format("name text files, or give {} to take bytes of any kind", bytes_setting);
  if (const Format* f = known(start); f && (!any_bytes || !f->instead.empty()))
    return fmt::format("this is {}, not text; {}{}", f->name,
                       f->instead.empty() ? std::string_view(for_bytes) : f->instead,
                       f->instead.ends_with("(FILE)") ? kLines : "");
  if (any_bytes) return {};
  // Text in an encoding of old has some bytes that are no UTF-8, and dirty text some control characters. Programs and
  // numbers have far more: a sample of random bytes has 11% control characters and 45% outside of UTF-8.
  constexpr std::size_t kControlsOneIn = 100, kOutsideOneIn = 10, kFew = 2, kCut = 6;
  std::size_t controls = 0, outside = 0;
  for (const std::string_view sample : {start, middle}) {
    controls += static_cast<std::size_t>(std::ranges::count_if(sample, [&](char c) { return no_text(c, separator); }));
    outside += outside_utf8(sample);
  }
  const std::size_t bytes = start.size() + middle.size();
  if (controls > kFew && controls * kControlsOneIn > bytes)
    return fmt::format("this is not text: of {} bytes {} are control characters; {}", bytes, controls, for_bytes);
  if (outside > kCut && outside * kOutsideOneIn > bytes)
    return fmt::format(
        "this is not UTF-8 text: of {} bytes {} are none of it; iconv -f ENCODING -t UTF-8 FILE > NEW "
        "makes it so where it is text, and {} takes bytes of any kind",
        bytes, outside, bytes_setting);
  return {};
}

std::string why_not_one_document(const Path& path, std::string_view separator_key) {
  const std::string end = ending_of(compression_of(path) == Compression::none ? path : path.stem());
  if (end != ".csv" && end != ".tsv") return {};
  return fmt::format(
      "a table is not one document; pandas.read_csv(FILE{}){}, and {}='\\n' takes each line as a document",
      end == ".tsv" ? ", sep=\"\\t\"" : "", kLines, separator_key);
}

}  // namespace redline::data
