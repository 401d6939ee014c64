#include "common/messages/message.h"

#include <set>

#include <gtest/gtest.h>

#include "common/messages/control_messages.h"
#include "common/messages/handshake.h"
#include "common/messages/message_codec.h"
#include "common/reach/protocol_hash.h"

namespace rcuda::wire {

// A message whose list of fields differs in one property from the list of kNone.
enum class Change {
  kNone,
  kName,
  kType,
  kSign,
  kOrder,
  kMore,
  kLength,
  kLimit,
  kItem,
  kText,
  kTextLimit,
  kChoice,
};

struct Part {
  uint64_t place = 0;
};
template <typename Visitor>
void fields(Visitor& visit, Part& m) {
  visit.number("place", m.place);
}

enum class Colour : uint32_t { kRed = 1, kGreen };

template <Change change>
struct Sample {
  static constexpr char kName[] = "Sample";
  uint32_t first = 0, second = 0;
  int32_t third = 0;
  uint64_t wide = 0;
  uint8_t secret[16] = {};
  std::string text;
  Colour colour = Colour::kRed;
  std::vector<Part> parts;
  std::vector<uint64_t> numbers;
};

template <typename Visitor, Change change>
void fields(Visitor& visit, Sample<change>& m) {
  static constexpr const char* kColours[] = {"red", "green"};
  static constexpr const char* kOtherColours[] = {"green", "red"};
  static constexpr bool kSwap = change == Change::kOrder;
  visit.number(kSwap ? "second" : "first", kSwap ? m.second : m.first);
  visit.number(kSwap ? "first" : "second", kSwap ? m.first : m.second);
  if constexpr (change == Change::kType) {
    visit.number("third", m.wide);
  } else if constexpr (change == Change::kSign) {
    visit.number("third", m.first);
  } else {
    visit.number(change == Change::kName ? "other" : "third", m.third);
  }
  if (change == Change::kMore) visit.number("wide", m.wide);
  visit.bytes("secret", std::span(m.secret).first(change == Change::kLength ? 15 : 16));
  if (change == Change::kText) {
    visit.string("text", m.text);
  } else {
    visit.text("text", m.text, {1, change == Change::kTextLimit ? 33u : 32u});
  }
  visit.choice("colour", m.colour, change == Change::kChoice ? kOtherColours : kColours);
  if (change == Change::kItem) {
    visit.list("parts", m.numbers, 7);
  } else {
    visit.list("parts", m.parts, change == Change::kLimit ? 8 : 7);
  }
}

namespace {

template <Change... changes>
std::set<uint64_t> hashes() {
  return {layout_hash<Sample<changes>>()...};
}

TEST(LayoutTest, EveryChangeOfTheFieldsChangesIt) {
  using enum Change;
  EXPECT_EQ((hashes<kNone, kName, kType, kSign, kOrder, kMore, kLength, kLimit, kItem, kText,
                    kTextLimit, kChoice>()
                 .size()),
            12u);
}

TEST(LayoutTest, ItIsOfTheFieldsAlone) {
  EXPECT_EQ(Codec<Sample<Change::kNone>>::layout(),
            "Sample{first:u32,second:u32,third:i32,secret:bytes[16],text:text[1..32],"
            "colour:choice(red,green),parts:list[7]{place:u64}}");
  EXPECT_EQ(Codec<ControlRequest>::layout(),
            "ControlRequest{operation:choice(end,drain,resume,ask,reload,park,wake,move),"
            "worker_pid:u32,from:optional{:u32},to:optional{:u32}}");
  EXPECT_NE(Codec<Welcome>::layout().find("attributes:list[4096]{:i32},"), std::string::npos);
}

TEST(LayoutTest, AProtocolHasOneHash) {
  EXPECT_NE(protocol_hash(), 0u);
  EXPECT_EQ(protocol_hash(), protocol_hash());
}

using Message = Sample<Change::kNone>;

Message sample() {
  Message message;
  message.third = -3;
  message.text = "text";
  message.colour = Colour::kGreen;
  message.parts = {{5}, {6}};
  return message;
}

TEST(MessageTest, SurvivesTheWire) {
  const Result<Message> got = decode<Message>(encode(sample()));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->third, -3);
  EXPECT_EQ(got->text, "text");
  EXPECT_EQ(got->colour, Colour::kGreen);
  ASSERT_EQ(got->parts.size(), 2u);
  EXPECT_EQ(got->parts[1].place, 6u);
}

TEST(MessageTest, LimitsAreChecked) {
  const auto refused = [](const Message& message) {
    const Status status = decode<Message>(encode(message)).status();
    return status.code() == Code::kProtocol &&
           status.context().find("malformed Sample") != std::string::npos;
  };
  Message message = sample();
  message.parts.resize(7);
  EXPECT_FALSE(refused(message));
  message.parts.resize(8);
  EXPECT_TRUE(refused(message));
  for (const size_t length : {0, 33}) {
    message = sample();
    message.text = std::string(length, 'x');
    EXPECT_TRUE(refused(message)) << length;
  }
  for (const uint32_t colour : {0, 3}) {
    message = sample();
    message.colour = static_cast<Colour>(colour);
    EXPECT_TRUE(refused(message)) << colour;
  }
}

TEST(MessageTest, AnyOtherLengthIsRefused) {
  std::vector<std::byte> body = encode(sample());
  body.push_back(std::byte{0});
  EXPECT_FALSE(decode<Message>(body).ok());
  for (body.pop_back(); !body.empty();) {
    body.pop_back();
    EXPECT_FALSE(decode<Message>(body).ok()) << body.size();
  }
}

// Each item of a list takes at least as many bytes as an empty item.
TEST(MessageTest, ACountThatTheBytesCannotHoldIsRefused) {
  EXPECT_EQ(least_bytes<Part>(), 8u);
  EXPECT_EQ(least_bytes<std::string>(), 4u);
  MessageWriter out;
  std::vector<uint64_t> numbers(3);
  out.list("numbers", numbers, 3);
  std::vector<std::byte> body = out.take();
  body.pop_back();
  MessageReader in(body);
  std::vector<uint64_t> got;
  in.list("numbers", got, 3);
  EXPECT_TRUE(got.empty());
  EXPECT_FALSE(in.complete());
}

}  // namespace
}  // namespace rcuda::wire
