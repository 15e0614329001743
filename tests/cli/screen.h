// A terminal for tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/live_canvas.h"
#include "text/utf8.h"

namespace dgemma::cli {

// A terminal that understands what LiveCanvas sends: text, CR, LF, cursor up, erasing, clipping and colours.
// It fails the test on anything else. A screen that is too short scrolls.
class Screen {
  public:
    Screen(int columns, int rows) : columns_(columns), lines_(static_cast<std::size_t>(rows)) {}

    void write(const std::string& bytes) {
        for (std::size_t at = 0; at < bytes.size();) {
            if (bytes[at] == '\x1b') {
                at = escape(bytes, at + 1);
                continue;
            }
            const char32_t c = text::next_code_point(bytes, at);
            if (c == U'\r') {
                column_ = 0;
            } else if (c == U'\n') {
                column_ = 0;  // as the terminal's driver has it (onlcr)
                if (row_ + 1 == lines_.size()) {
                    lines_.erase(lines_.begin());
                    lines_.emplace_back();
                } else {
                    ++row_;
                }
            } else {
                put(c);
            }
        }
    }

    // The window gets another width. reflows: lines that do not fit are broken anew, and the cursor stays
    // with its character; else they are cut off.
    void resize(int columns, bool reflows) {
        columns_ = columns;
        const auto width = static_cast<std::size_t>(columns);
        if (!reflows) {
            for (auto& line : lines_) line.resize(std::min(line.size(), width));
            column_ = std::min(column_, columns - 1);
            return;
        }
        std::vector<std::u32string> lines;
        std::size_t row = 0;
        int column = column_;
        for (std::size_t i = 0; i < lines_.size(); ++i) {
            if (i == row_) row = lines.size();
            const std::u32string& line = lines_[i];
            for (std::size_t at = 0; at == 0 || at < line.size(); at += width) {
                lines.push_back(line.substr(at, width));
                if (i == row_ && at > 0 && column >= columns) {
                    ++row;
                    column -= columns;
                }
            }
        }
        while (lines.size() > lines_.size() && lines.back().empty()) lines.pop_back();
        while (lines.size() > lines_.size()) {
            lines.erase(lines.begin());
            --row;
        }
        lines_ = std::move(lines);
        row_ = row;
        column_ = column;
    }

    [[nodiscard]] std::vector<std::string> lines() const {
        std::vector<std::string> out;
        for (const auto& cells : lines_) {
            std::string line;
            for (const char32_t c : cells) {
                if (c != 0) text::append_utf8(line, c);
            }
            out.push_back(line);
        }
        while (!out.empty() && out.back().empty()) out.pop_back();
        return out;
    }
    [[nodiscard]] bool wraps() const { return wraps_; }
    [[nodiscard]] std::size_t row() const { return row_; }
    [[nodiscard]] int column() const { return column_; }
    [[nodiscard]] int clipped() const { return clipped_; }

  private:
    std::size_t escape(const std::string& bytes, std::size_t at) {
        EXPECT_EQ(bytes[at], '[');
        const std::size_t end = bytes.find_first_of("AJKmhl", at);
        if (end == std::string::npos) {
            ADD_FAILURE() << "an escape sequence no one knows";
            return bytes.size();
        }
        const std::string number = bytes.substr(at + 1, end - at - 1);
        auto& line = lines_[row_];
        switch (bytes[end]) {
            case 'A':
                row_ -= std::min(row_, static_cast<std::size_t>(std::stoi(number)));
                break;
            case 'J':
                line.resize(std::min(line.size(), static_cast<std::size_t>(column_)));
                for (std::size_t i = row_ + 1; i < lines_.size(); ++i) lines_[i].clear();
                break;
            case 'K':
                line.resize(std::min(line.size(), static_cast<std::size_t>(column_)));
                break;
            case 'h':
                wraps_ = true;
                EXPECT_EQ(number, "?7");
                break;
            case 'l':
                wraps_ = false;
                EXPECT_EQ(number, "?7");
                break;
            default:
                break;  // colours
        }
        return end + 1;
    }

    void put(char32_t c) {
        EXPECT_GE(c, 0x20u) << "a control character reached the terminal";
        const int width = columns_of(c);
        if (column_ + width > columns_) ++clipped_;
        auto& line = lines_[row_];
        line.resize(std::max(line.size(), static_cast<std::size_t>(column_ + width)), U' ');
        if (width == 0) return;
        line[static_cast<std::size_t>(column_)] = c;
        if (width == 2) line[static_cast<std::size_t>(column_) + 1] = 0;
        column_ += width;
    }

    int columns_;
    std::vector<std::u32string> lines_;
    std::size_t row_ = 0;
    int column_ = 0;
    int clipped_ = 0;
    bool wraps_ = true;
};

}  // namespace dgemma::cli
