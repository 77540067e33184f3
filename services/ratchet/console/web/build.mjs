// Builds the console's bundle: types from the OpenAPI documents, tsc, esbuild, and index.html, into ../static.
//
//   node build.mjs            write generated/ and ../static
//   node build.mjs --check    exit 1 when ../static is not what these sources make
//   node build.mjs --types    write generated/ alone, which editors and tsc need

import { execFileSync, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, parse } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import * as esbuild from "esbuild";
import openapiTS, { astToString } from "openapi-typescript";

const HERE = dirname(fileURLToPath(import.meta.url));
const RATCHET = join(HERE, "../../../../.venv/bin/ratchet");
const STATIC = join(HERE, "../static");
const DOCUMENTS = ["console", "coordinator", "deployer", "workflows", "analyst"];
const LARGEST = { plain: 280_000, gzip: 80_000 };

async function writeTypes() {
  mkdirSync(join(HERE, "generated"), { recursive: true });
  for (const name of DOCUMENTS) {
    const document = JSON.parse(execFileSync(RATCHET, ["contract", "openapi", name], { encoding: "utf8", maxBuffer: 2 ** 24 }));
    const types = astToString(await openapiTS(document, { alphabetize: true }));
    writeFileSync(join(HERE, "generated", `${name}.ts`), types);
  }
}

function checkTypes() {
  const tsc = join(HERE, "node_modules/typescript/bin/tsc");
  const { status } = spawnSync(process.execPath, [tsc, "--project", HERE], { stdio: "inherit" });
  if (status !== 0) process.exit(1);
}

/** The name of a file that never changes. esbuild's own hashes depend on where the packages lie. */
function named(name, bytes) {
  const { name: stem, ext } = parse(name);
  return `${stem}-${createHash("sha256").update(bytes).digest("hex").slice(0, 8).toUpperCase()}${ext}`;
}

/** Path below ../static -> its bytes. */
async function bundle() {
  const built = await esbuild.build({
    absWorkingDir: HERE,
    entryPoints: { console: "src/main.tsx" },
    outdir: STATIC,
    entryNames: "[name]",
    bundle: true,
    minify: true,
    write: false,
    format: "esm",
    target: "es2023",
    charset: "utf8",
    // Children as arguments instead of a member: a kilobyte less, with gzip. tsc checks the same files its own way.
    jsx: "transform",
    jsxFactory: "h",
    jsxFragment: "Fragment",
    inject: ["src/jsx.ts"],
    tsconfigRaw: {},
    legalComments: "none",
  });
  const outputs = built.outputFiles.map((file) => [basename(file.path), Buffer.from(file.contents)]);
  const assets = [...outputs, ["icon.svg", readFileSync(join(HERE, "src/icon.svg"))]];
  const files = new Map(assets.map(([name, bytes]) => [named(name, bytes), bytes]));
  files.set("index.html", Buffer.from(page([...files.keys()])));
  return files;
}

function page(names) {
  const ending = (suffix) => names.find((name) => name.endsWith(suffix));
  return readFileSync(join(HERE, "src/index.html"), "utf8")
    .replace("{icon}", ending(".svg"))
    .replace("{css}", ending(".css"))
    .replace("{js}", ending(".js"));
}

function written() {
  return existsSync(STATIC) ? new Map(readdirSync(STATIC).map((name) => [name, readFileSync(join(STATIC, name))])) : new Map();
}

function differences(files) {
  const old = written();
  const changed = [...files].filter(([name, bytes]) => !old.get(name)?.equals(bytes)).map(([name]) => name);
  return [...changed, ...[...old.keys()].filter((name) => !files.has(name))];
}

function write(files) {
  rmSync(STATIC, { recursive: true, force: true });
  mkdirSync(STATIC, { recursive: true });
  for (const [name, bytes] of files) writeFileSync(join(STATIC, name), bytes);
}

function checkSize(files) {
  const all = Buffer.concat([...files.values()]);
  const gzip = [...files.values()].reduce((sum, bytes) => sum + gzipSync(bytes).length, 0);
  console.log(`console: ${all.length} bytes, ${gzip} with gzip`);
  if (all.length > LARGEST.plain || gzip > LARGEST.gzip) {
    console.error(`the bundle is larger than ${LARGEST.plain} bytes, or ${LARGEST.gzip} with gzip`);
    process.exit(1);
  }
}

await writeTypes();
if (!process.argv.includes("--types")) {
  checkTypes();
  const files = await bundle();
  checkSize(files);
  if (!process.argv.includes("--check")) {
    write(files);
  } else if (differences(files).length > 0) {
    console.error(`services/ratchet/console/static is out of date (${differences(files).join(", ")}): run \`make console\``);
    process.exit(1);
  }
}
