import assert from "node:assert/strict";
import { test } from "node:test";

import { slug } from "./slug.js";

for (const [title, want] of [
  ["Hello, world!", "hello-world"],
  ["  Déjà   vu  ", "deja-vu"],
  ["100 % sealed", "100-sealed"],
  ["", ""],
]) {
  test(`slug of ${JSON.stringify(title)}`, () => assert.equal(slug(title), want));
}
