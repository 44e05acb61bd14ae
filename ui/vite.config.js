// One page, all files beside it: the window loads nothing from anywhere else.
import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { defineConfig } from "vite";

/// Every catalogue has the keys of the English one, which a test checks: they are in the page once.
const catalogues = {
  name: "catalogues",
  transform(_, id) {
    const isOther = basename(dirname(id)) === "messages" && basename(id) !== "en.json";
    if (!isOther) return null;
    const read = (file) => JSON.parse(readFileSync(file, "utf8"));
    const own = read(id);
    const words = Object.keys(read(join(dirname(id), "en.json"))).map((key) => own[key]);
    const code = `import en from "./en.json";
      const words = ${JSON.stringify(words)};
      export default Object.fromEntries(Object.keys(en).map((key, at) => [key, words[at]]));`;
    return { code, map: null };
  },
};

export default defineConfig({
  base: "./",
  plugins: [catalogues],
  build: { target: "es2021", modulePreload: false, assetsInlineLimit: 0, chunkSizeWarningLimit: 150 },
});
