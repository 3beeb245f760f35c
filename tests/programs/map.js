// Holds as many objects as it is told in a Map, and gives them to any client that asks by HTTP.
const [count, port] = process.argv.slice(2).map(Number);
const map = new Map();
for (let id = 0; id < count; id++)
    map.set('key ' + id, { id, text: 'object ' + id * 7919, list: [id, id + 1] });
require('http').createServer((request, response) => {
    const name = request.url.slice(1);
    response.end(name === 'size' ? '' + map.size : JSON.stringify(map.get('key ' + name)));
}).listen(port, '127.0.0.1');
