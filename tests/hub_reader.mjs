// transformers.js as a reader of a Hub repository: node hub_reader.mjs NODE_MODULES < ask.json > answers.json
// Reads a list of objects with `folder`, `task` and `inputs`; prints for each the scores of its pipeline and the logits
// of its model.
import { readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

const main = join(process.argv[2], '@huggingface/transformers/dist/transformers.node.mjs');
const { AutoModel, AutoTokenizer, env, pipeline } = await import(pathToFileURL(main).href);
env.allowRemoteModels = false;

async function answersOf({ folder, task, inputs }) {
  env.localModelPath = dirname(dirname(folder)); // set once: files are cached by name
  const name = join(basename(dirname(folder)), basename(folder));
  const answers = {};
  if (inputs.every((each) => typeof each === 'string')) { // its pipelines do not read pairs
    const classify = await pipeline(task, name);
    const options = task.startsWith('token') ? { ignore_labels: [] } : { top_k: null };
    answers.pipeline = [];
    for (const each of inputs) answers.pipeline.push(await classify(each, options));
  }
  if (!task.startsWith('image')) {
    const tokenizer = await AutoTokenizer.from_pretrained(name);
    const model = await AutoModel.from_pretrained(name);
    answers.logits = [];
    for (const each of inputs) {
      const [text, second] = typeof each === 'string' ? [each, null] : each;
      const { logits } = await model(tokenizer(text, { text_pair: second, truncation: true }));
      answers.logits.push(logits.tolist()[0]);
    }
  }
  return answers;
}

const all = [];
for (const ask of JSON.parse(readFileSync(0, 'utf8'))) all.push(await answersOf(ask));
console.log(JSON.stringify(all));
