// Server-sent events out of a byte stream. EventSource cannot send the key as a header, so we read them ourselves.

export interface ServerEvent {
  readonly event: string;
  readonly data: string;
}

/** Takes text as it arrives, and gives the events that it completes. */
export class EventParser {
  #rest = "";
  #event = "message";
  #data: string[] = [];

  push(text: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    // A \r at the end may be the first half of \r\n.
    const held = (this.#rest + text).endsWith("\r") ? 1 : 0;
    const all = this.#rest + text;
    const lines = all.slice(0, all.length - held).split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + all.slice(all.length - held);
    for (const line of lines) {
      const event = this.#line(line);
      if (event !== undefined) events.push(event);
    }
    return events;
  }

  #line(line: string): ServerEvent | undefined {
    if (line === "") return this.#finish();
    const at = line.indexOf(":");
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (name === "event") this.#event = value;
    if (name === "data") this.#data.push(value);
    return undefined;
  }

  #finish(): ServerEvent | undefined {
    const event = { event: this.#event, data: this.#data.join("\n") };
    const isEmpty = this.#data.length === 0;
    this.#event = "message";
    this.#data = [];
    return isEmpty ? undefined : event;
  }
}
