import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser } from "../src/api/sse.ts";

const STREAM = ': a comment\r\nevent: hint\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: plain\n\nevent: empty\n\nretry: 3\rdata:last\r\r\n';
const EVENTS = [
  { event: "hint", data: '{"a":\n1}' },
  { event: "message", data: "plain" },
  { event: "message", data: "last" },
];

test("events are the same however the stream is cut", () => {
  for (let size = 1; size <= STREAM.length; size += 1) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < STREAM.length; at += size) events.push(...parser.push(STREAM.slice(at, at + size)));
    assert.deepEqual(events, EVENTS, `in parts of ${size}`);
  }
});

test("an event without its end does not count", () => {
  assert.deepEqual(new EventParser().push("data: half\n"), []);
});
