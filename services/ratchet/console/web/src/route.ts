// The address of a view: #/rollouts/support?tab=gates. Nothing here touches the page.

export interface Route {
  /** Decoded parts of the path: ["rollouts", "support"]; empty for the home view. */
  readonly parts: readonly string[];
  readonly params: Readonly<Record<string, string>>;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = split(hash.replace(/^#\/?/, ""));
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** The link to a view: href("rollouts", "support", { tab: "gates" }). Parameters without a value are left out. */
export function href(...where: (string | number | Record<string, string | number | null | undefined>)[]): string {
  const parts = where.filter((one) => typeof one !== "object").map((part) => encodeURIComponent(part));
  const params = new URLSearchParams();
  for (const one of where) {
    if (typeof one !== "object") continue;
    for (const [name, value] of Object.entries(one)) {
      if (value !== null && value !== undefined && value !== "") params.set(name, String(value));
    }
  }
  const query = params.toString();
  return `#/${parts.join("/")}${query ? `?${query}` : ""}`;
}

function split(text: string): string[] {
  const at = text.indexOf("?");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
