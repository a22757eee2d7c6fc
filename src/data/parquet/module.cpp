// The Parquet module: one column of a file as rows of bytes, through the column readers of Arrow's Parquet library.
// They give pointers into decoded pages, so that no array of Arrow is made, and dictionaries, page versions and codecs
// are their affair. Memory is a page or two a group: the file is read through a buffer, not a column at a time.
#include <arrow/status.h>
#include <arrow/util/config.h>
#include <arrow/util/io_util.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet/interface.h"

struct RedlineParquetFile {
  std::unique_ptr<parquet::ParquetFileReader> reader;
  int column = 0;
  std::vector<std::int64_t> rows;  // by group
};

struct RedlineParquetGroup {
  static constexpr std::int64_t kRows = 1024;
  std::shared_ptr<parquet::ColumnReader> column;
  std::int16_t present = 0;  // the definition level of what is not null; 0: nothing can be
  std::array<std::int16_t, kRows> levels;
  std::array<parquet::ByteArray, kRows> values;
  std::array<RedlineParquetRow, kRows> rows;
};

namespace {

constexpr std::int64_t kBuffer = std::int64_t{1} << 18;

struct Problem {
  RedlineParquetProblem kind;
  std::string text;
};

void tell(RedlineParquetError* error, RedlineParquetProblem kind, std::string_view text) {
  text = text.substr(0, std::min(text.find('\n'), sizeof(error->text) - 1));
  error->problem = kind;
  std::memcpy(error->text, text.data(), text.size());
  error->text[text.size()] = '\0';
}

// Nothing is thrown out of the module.
template <class Result, class Body>
Result guarded(Result failed, RedlineParquetError* error, Body body) {
  try {
    return body();
  } catch (const Problem& problem) {
    tell(error, problem.kind, problem.text);
  } catch (const parquet::ParquetStatusException& e) {
    const int number = arrow::internal::ErrnoFromStatus(e.status());
    if (e.status().IsOutOfMemory()) {
      tell(error, kParquetMemory, "no memory");
    } else {
      tell(error, number != 0 ? kParquetSystem : kParquetBadFile, e.status().message());
    }
  } catch (const std::bad_alloc&) {
    tell(error, kParquetMemory, "no memory");
  } catch (const std::exception& e) {
    tell(error, kParquetBadFile, e.what());
  }
  return failed;
}

std::string quoted(std::string_view name) { return '"' + std::string(name) + '"'; }

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 12;
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) list += (i > 0 ? ", " : "") + quoted(names[i]);
  if (names.size() > kShown) list += " and " + std::to_string(names.size() - kShown) + " more";
  return list;
}

// The columns that a name which is no leaf leads to.
[[noreturn]] void refuse(const parquet::SchemaDescriptor& schema, const std::string& wanted) {
  std::vector<std::string> all, below;
  bool list = false;
  for (int i = 0; i < schema.num_columns(); ++i) {
    all.push_back(schema.Column(i)->path()->ToDotString());
    if (!all.back().starts_with(wanted + ".")) continue;
    below.push_back(all.back());
    list = list || schema.Column(i)->max_repetition_level() > 0;
  }
  if (list) throw Problem{kParquetNoText, "the column " + quoted(wanted) + " is a list, not a string"};
  if (!below.empty())
    throw Problem{kParquetNoColumn, "the column " + quoted(wanted) + " has columns of its own: " + listed(below)};
  throw Problem{kParquetNoColumn,
                "there is no column " + quoted(wanted) + "; " +
                    (all.empty() ? "the file has none"
                                 : (all.size() == 1 ? "the column is " : "the columns are ") + listed(all))};
}

// Strings have a mark, which old writers leave out.
void require_text(const parquet::ColumnDescriptor& column, const std::string& name) {
  const auto& mark = column.logical_type();
  const bool text = !mark || mark->is_none() || mark->is_string() || mark->is_enum() || mark->is_JSON();
  std::string is;
  if (column.max_repetition_level() > 0) {
    is = "a list";
  } else if (column.physical_type() != parquet::Type::BYTE_ARRAY) {
    is = "of the type " + parquet::TypeToString(column.physical_type());
  } else if (!text) {
    is = "of the type " + mark->ToString();
  }
  if (!is.empty()) throw Problem{kParquetNoText, "the column " + quoted(name) + " is " + is + ", not a string"};
}

RedlineParquetFile* open(const char* path, const char* wanted, RedlineParquetError* error) {
  return guarded<RedlineParquetFile*>(nullptr, error, [&] {
    parquet::ReaderProperties properties;
    properties.enable_buffered_stream();
    properties.set_buffer_size(kBuffer);
    properties.set_page_checksum_verification(true);
    auto file = std::make_unique<RedlineParquetFile>();
    file->reader = parquet::ParquetFileReader::OpenFile(path, false, properties);
    const auto metadata = file->reader->metadata();
    const parquet::SchemaDescriptor& schema = *metadata->schema();
    int found = 0;
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (schema.Column(i)->path()->ToDotString() != wanted) continue;
      if (found++ > 0) throw Problem{kParquetBadFile, "the column " + quoted(wanted) + " is there twice"};
      file->column = i;
    }
    if (found == 0) refuse(schema, wanted);
    require_text(*schema.Column(file->column), wanted);
    for (int g = 0; g < metadata->num_row_groups(); ++g) {
      file->rows.push_back(metadata->RowGroup(g)->num_rows());
      if (file->rows.back() < 0) throw Problem{kParquetBadFile, "a row group has fewer than no rows"};
    }
    return file.release();
  });
}

void close(RedlineParquetFile* file) { std::unique_ptr<RedlineParquetFile>{file}; }
std::int64_t groups(const RedlineParquetFile* file) { return static_cast<std::int64_t>(file->rows.size()); }
std::int64_t rows(const RedlineParquetFile* file, std::int64_t group) {
  return file->rows[static_cast<std::size_t>(group)];
}

parquet::ByteArrayReader& bytes_of(RedlineParquetGroup& group) {
  return static_cast<parquet::ByteArrayReader&>(*group.column);
}

RedlineParquetGroup* open_group(RedlineParquetFile* file, std::int64_t number, std::int64_t from,
                                RedlineParquetError* error) {
  return guarded<RedlineParquetGroup*>(nullptr, error, [&] {
    auto group = std::make_unique<RedlineParquetGroup>();
    group->column = file->reader->RowGroup(static_cast<int>(number))->Column(file->column);
    group->present = group->column->descr()->max_definition_level();
    if (bytes_of(*group).Skip(from) != from) throw Problem{kParquetBadFile, "it has fewer rows than the file says"};
    return group.release();
  });
}

void close_group(RedlineParquetGroup* group) { std::unique_ptr<RedlineParquetGroup>{group}; }

std::int64_t next(RedlineParquetGroup* group, const RedlineParquetRow** to, RedlineParquetError* error) {
  return guarded<std::int64_t>(-1, error, [&]() -> std::int64_t {
    if (!group->column->HasNext()) return 0;
    std::int64_t values = 0;
    const std::int64_t count = bytes_of(*group).ReadBatch(RedlineParquetGroup::kRows, group->levels.data(), nullptr,
                                                          group->values.data(), &values);
    if (count <= 0) throw Problem{kParquetBadFile, "a page has fewer rows than it says"};
    std::int64_t value = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      RedlineParquetRow& row = group->rows[static_cast<std::size_t>(i)];
      row = {nullptr, 0};
      if (group->present > 0 && group->levels[static_cast<std::size_t>(i)] != group->present) continue;
      if (value == values) throw Problem{kParquetBadFile, "a page has fewer values than it says"};
      const parquet::ByteArray& bytes = group->values[static_cast<std::size_t>(value++)];
      row = {bytes.ptr ? reinterpret_cast<const char*>(bytes.ptr) : "", bytes.len};
    }
    *to = group->rows.data();
    return count;
  });
}

constexpr RedlineParquet kModule = {kParquetInterface, ARROW_VERSION_STRING, open, close, groups, rows,
                                    open_group,        close_group,          next};

}  // namespace

extern "C" __attribute__((visibility("default"))) const RedlineParquet* redline_parquet() { return &kModule; }
