// Requests to the console, which passes those below /coordinator, /deployer, /gateway, /workflows and /analyst on.

import { expire, issuer, key } from "./session.ts";

const PATIENCE_MS = 30_000;
const OWNERS: Readonly<Record<string, string>> = { coordinator: "coordinator", deployer: "deployer", gateway: "gateway", workflows: "workflows service", analyst: "analyst" };

/** A request that failed; `message` is the service's own words. */
export class ApiError extends Error {
  /** 0: no answer came. */
  readonly status: number;
  /** Who failed to do it. */
  readonly service: string;

  constructor(status: number, service: string, message: string) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.service = service;
  }

  /** The service is away: asking again later may help. */
  get isOutage(): boolean {
    return this.status === 0 || this.status >= 500;
  }
}

export interface RequestOptions {
  readonly method?: string;
  readonly body?: unknown;
  readonly signal?: AbortSignal;
  readonly patienceMs?: number;
}

/** The answer's JSON. Throws `ApiError`, and `AbortError` when the caller gave up. */
export async function request<T>(path: string, options: RequestOptions = {}): Promise<T> {
  const own = key.value;
  const response = await send(path, options);
  const text = await response.text().catch((error: unknown) => fail(path, options, error));
  if (response.status === 401) issuer.set(response.headers.get("x-ratchet-sign-in"));
  if (!response.ok) throw refusal(path, response.status, text, own);
  try {
    return (text === "" ? null : JSON.parse(text)) as T;
  } catch {
    throw new ApiError(response.status, ownerOf(path), "The answer is not JSON. Is something else listening there?");
  }
}

export function post<T>(path: string, body: unknown, options: RequestOptions = {}): Promise<T> {
  return request<T>(path, { ...options, method: "POST", body });
}

/** The response itself, for what is read as it arrives. Does not look at its status. */
export async function send(path: string, options: RequestOptions): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json" };
  const own = key.value;
  if (own !== null) headers["authorization"] = `Bearer ${own}`;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  const patience = AbortSignal.timeout(options.patienceMs ?? PATIENCE_MS);
  const signal = options.signal === undefined ? patience : AbortSignal.any([options.signal, patience]);
  const init: RequestInit = { method: options.method ?? "GET", headers, signal, cache: "no-store", credentials: "same-origin" };
  if (options.body !== undefined) init.body = JSON.stringify(options.body);
  // Relative: the console may be served below another path.
  return fetch(path.replace(/^\//, ""), init).catch((error: unknown) => fail(path, options, error));
}

/** The service that a path belongs to. */
export function ownerOf(path: string): string {
  return OWNERS[path.split("/")[1] ?? ""] ?? "console";
}

function refusal(path: string, status: number, text: string, own: string | null): ApiError {
  const error = new ApiError(status, ownerOf(path), errorMessage(text) ?? `HTTP ${status}`);
  if (status === 401) expire(own, error.message);
  return error;
}

/** The message of an ErrorOut. */
export function errorMessage(text: string): string | null {
  try {
    const message: unknown = (JSON.parse(text) as { error?: { message?: unknown } }).error?.message;
    return typeof message === "string" ? message : null;
  } catch {
    return null;
  }
}

function fail(path: string, options: RequestOptions, error: unknown): never {
  if (options.signal?.aborted === true) throw error;
  if (error instanceof DOMException && error.name === "TimeoutError") {
    const seconds = (options.patienceMs ?? PATIENCE_MS) / 1000;
    throw new ApiError(0, ownerOf(path), `No answer within ${seconds} s.`);
  }
  throw new ApiError(0, "console", "The console does not answer. Is it running, and can this computer reach it?");
}
