// Writes dist/index.json: each title of titles.txt with its slug.
import { mkdir, readFile, writeFile } from "node:fs/promises";

import { slug } from "./slug.js";

const titles = (await readFile("titles.txt", "utf8")).split("\n").filter(Boolean);
await mkdir("dist", { recursive: true });
await writeFile("dist/index.json", JSON.stringify(Object.fromEntries(titles.map((t) => [t, slug(t)])), null, 2) + "\n");
