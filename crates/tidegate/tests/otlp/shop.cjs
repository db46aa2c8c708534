// An app that knows nothing of Tidegate: four workers of a cluster, instrumented from outside. Prints the
// port, then serves until its standard input ends. A worker that is asked for /crash ends, another takes its
// place, and "replaced" is printed.
const cluster = require('node:cluster');

if (cluster.isPrimary) {
  let listening = 0;
  cluster.on('exit', () => cluster.fork());
  cluster.on('listening', (_, address) => {
    listening += 1;
    if (listening === 4) console.log(address.port);
    if (listening > 4) console.log('replaced');
  });
  for (let n = 0; n < 4; n++) cluster.fork();
  process.stdin.resume();
  process.stdin.on('end', () => process.exit(0));
} else {
  const express = require('express');
  const app = express();
  app.get('/users/:id', (request, response) => response.send(request.params.id));
  app.get('/fail', (_, response) => response.status(500).send('no'));
  app.get('/crash', (_, response) => {
    response.send('bye');
    // The last numbers leave first.
    setTimeout(() => process.exit(1), 1500);
  });
  app.listen(Number(process.env.SHOP_PORT || 0), '127.0.0.1');
}
